//! The one error type of the crate: a code of dftext.h and a message for people.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    InvalidArgument = 1,
    Corrupt = 2,
    ResourceExhausted = 3,
    DeadlineExceeded = 4,
    Unsupported = 5,
    Panic = 6,
    /// The machine cannot do it now: no fault of the input.
    Unavailable = 7,
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidArgument, message)
    }
    pub fn corrupt(message: impl Into<String>) -> Failure {
        Failure::new(Code::Corrupt, message)
    }

    /// A failure of ours that travelled through a library as a boxed error, or `code` with the library's words.
    pub fn unbox(error: Box<dyn std::error::Error + Send + Sync>, code: Code, what: &str) -> Failure {
        match error.downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(other) => Failure::new(code, format!("{what}: {}", shorten(&other.to_string()))),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Hostile names may be megabytes long; messages stay readable.
pub fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
