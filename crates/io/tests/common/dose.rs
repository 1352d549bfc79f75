//! The size of a random test: small for every change, full in `make test-long`.

/// Returns the small number, or the full one if `DALSEGNO_DOSE` is `long`.
pub(crate) fn dose<T>(small: T, full: T) -> T {
    if std::env::var_os("DALSEGNO_DOSE").is_some_and(|dose| dose == "long") { full } else { small }
}
