//! Names the place of a failure.

/// Prints the place of a failure: the seed and the number of the operation.
#[derive(Debug)]
pub struct Label(pub String);

impl Drop for Label {
    #[expect(clippy::print_stderr, reason = "the seed of a failed test is needed to repeat it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at {}", self.0);
        }
    }
}
