//! The setting `index_tuning`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::shape::Shape;
use crate::{Error, Result};

/// Whether the shape of the index adapts to its workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum IndexTuning {
    /// It adapts.
    #[default]
    Auto,
    /// It keeps its shape, and no costs are computed.
    Off,
    /// It always has this shape.
    Pinned(Shape),
}

impl IndexTuning {
    /// The pinned shape, if any.
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
                "{other:?} is not a value of index_tuning; give `auto`, `off` or a shape such as \"T=8,K=3,Z=1\""
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
    fn every_value_parses_from_its_text() {
        let pinned = IndexTuning::Pinned(Shape::new(10, 4, 2).unwrap());
        for tuning in [IndexTuning::Auto, IndexTuning::Off, pinned] {
            assert_eq!(tuning.to_string().parse::<IndexTuning>().unwrap(), tuning);
        }
        let error = |text: &str| text.parse::<IndexTuning>().unwrap_err().to_string();
        assert!(error("on").contains("give `auto`, `off` or a shape"));
        assert!(error("T=8,K=8").contains("runs per level 8 is out of bounds"));
    }
}
