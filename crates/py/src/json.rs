//! JSON as Python values.

use pyo3::prelude::*;

/// Converts a JSON value to Python objects.
pub(crate) fn to_python<'py>(
    py: Python<'py>,
    value: &serde_json::Value,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (value.to_string(),))
}
