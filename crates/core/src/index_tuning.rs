//! Who decides on the shape: the setting `index_tuning`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result, Shape};

/// Whether the shape of the index follows what is asked of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum IndexTuning {
    /// It does.
    #[default]
    Auto,
    /// It stays as it is, and nothing is reckoned.
    Off,
    /// It is this one.
    Pinned(Shape),
}

impl IndexTuning {
    /// The shape that it is to have, if that is said.
    #[must_use]
    pub fn pinned(self) -> Option<Shape> {
        match self {
            Self::Pinned(shape) => Some(shape),
            Self::Auto | Self::Off => None,
        }
    }
}

impl fmt::Display for IndexTuning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Off => out.write_str("off"),
            Self::Pinned(shape) => {
                let (ratio, runs, last) = (shape.size_ratio(), shape.runs(), shape.last_runs());
                write!(out, "T={ratio},K={runs},Z={last}")
            }
        }
    }
}

impl FromStr for IndexTuning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            shape if shape.contains('=') => shape.parse().map(Self::Pinned),
            other => Err(Error::invalid(format!(
                "{other:?} is no way to tune the index; give `auto`, `off` or a shape such as \"T=8,K=3,Z=1\""
            ))),
        }
    }
}

impl TryFrom<String> for IndexTuning {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<IndexTuning> for String {
    fn from(tuning: IndexTuning) -> Self {
        tuning.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_is_written() {
        let pinned = IndexTuning::Pinned(Shape::new(10, 4, 2).unwrap());
        for tuning in [IndexTuning::Auto, IndexTuning::Off, pinned] {
            assert_eq!(tuning.to_string().parse::<IndexTuning>().unwrap(), tuning);
        }
        let told = |text: &str| text.parse::<IndexTuning>().unwrap_err().to_string();
        assert!(told("on").contains("give `auto`, `off` or a shape"));
        assert!(told("T=8,K=8").contains("runs per level 8 is out of bounds"));
    }
}
