//! The C border (include/dftext.h has the contract): pointers become slices, panics become codes.

mod bound;
mod depth;
mod encode;
mod failure;
mod generation;
mod harden;
mod pre_tokenize;
mod python;
mod stream;
mod template;
mod template_env;
mod tokenizer;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Once};

use encode::EncodeOptions;
use failure::{Code, Failure, Outcome};
use stream::Stream;
use template::{RenderOptions, Template};
use tokenizer::Tokenizer;

pub struct DftTokenizer(Arc<Tokenizer>);

#[repr(C)]
pub struct DftBuffer {
    data: *mut u8,
    size_bytes: usize,
    capacity_bytes: usize,
}

#[repr(C)]
pub struct DftEncodeOptions {
    add_special_tokens: bool,
    parse_special_tokens: bool,
    max_ms: i64,
    broken_at: *const usize,
    n_broken: usize,
}

#[repr(C)]
pub struct DftRenderOptions {
    max_output_bytes: u64,
    now_unix_s: i64,
    sentinel: u32,
}

/// Gives `bytes` to the caller, who frees it with dft_buffer_free.
unsafe fn give(buffer: *mut DftBuffer, bytes: Vec<u8>) {
    let mut bytes = std::mem::ManuallyDrop::new(bytes);
    *buffer = DftBuffer { data: bytes.as_mut_ptr(), size_bytes: bytes.len(), capacity_bytes: bytes.capacity() };
}

/// A slice of a C array; an empty one may have any pointer.
unsafe fn slice<'a, T>(data: *const T, n: usize) -> &'a [T] {
    if n == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, n)
    }
}

unsafe fn text<'a>(data: *const u8, size_bytes: usize) -> Outcome<&'a str> {
    std::str::from_utf8(slice(data, size_bytes))
        .map_err(|e| Failure::invalid(format!("text is not valid UTF-8 at byte {}", e.valid_up_to())))
}

/// The default hook prints to stderr; a library does not.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// Runs `work`; its failure or panic becomes the returned code and the message in `error`.
unsafe fn border(error: *mut DftBuffer, work: impl FnOnce() -> Outcome<()>) -> i32 {
    silence_panics();
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(payload) => panic_failure(payload),
    };
    give(error, failure.message.into_bytes());
    failure.code as i32
}

pub(crate) fn panic_failure(payload: Box<dyn std::any::Any + Send>) -> Failure {
    let words = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(words), _) => (*words).to_owned(),
        (_, Some(words)) => words.clone(),
        _ => "panic".to_owned(),
    };
    Failure::new(Code::Panic, failure::shorten(&words))
}

/// # Safety
/// `buffer` is zero, or was written by a function of this file and not freed since.
#[no_mangle]
pub unsafe extern "C" fn dft_buffer_free(buffer: *mut DftBuffer) {
    let it = &mut *buffer;
    if !it.data.is_null() {
        drop(Vec::from_raw_parts(it.data, it.size_bytes, it.capacity_bytes));
    }
    *it = DftBuffer { data: std::ptr::null_mut(), size_bytes: 0, capacity_bytes: 0 };
}

/// # Safety
/// As dftext.h says: `json` has `size_bytes` bytes, `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_new(
    json: *const u8,
    size_bytes: usize,
    out: *mut *mut DftTokenizer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        let tokenizer = Tokenizer::parse(slice(json, size_bytes))?;
        *out = Box::into_raw(Box::new(DftTokenizer(Arc::new(tokenizer))));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` came from dft_tokenizer_new, or is null.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_free(tokenizer: *mut DftTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_describe(
    tokenizer: *const DftTokenizer,
    out: *mut DftBuffer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        give(out, (*tokenizer).0.describe().into_bytes());
        Ok(())
    })
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_encode(
    tokenizer: *const DftTokenizer,
    data: *const u8,
    size_bytes: usize,
    options: *const DftEncodeOptions,
    out: *mut DftBuffer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        let c = &*options;
        let options = EncodeOptions {
            add_special_tokens: c.add_special_tokens,
            parse_special_tokens: c.parse_special_tokens,
            max_ms: c.max_ms,
            broken_at: (!c.broken_at.is_null()).then(|| slice(c.broken_at, c.n_broken)),
        };
        let ids = (*tokenizer).0.encode(text(data, size_bytes)?, &options)?;
        give(out, ids.iter().flat_map(|id| id.to_ne_bytes()).collect());
        Ok(())
    })
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_decode(
    tokenizer: *const DftTokenizer,
    ids: *const i32,
    n_ids: usize,
    skip_special_tokens: bool,
    out: *mut DftBuffer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        let decoded = (*tokenizer).0.decode(slice(ids, n_ids), skip_special_tokens)?;
        give(out, decoded.into_bytes());
        Ok(())
    })
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_id(tokenizer: *const DftTokenizer, data: *const u8, size_bytes: usize) -> i32 {
    silence_panics();
    let find = || text(data, size_bytes).ok().and_then(|token| (*tokenizer).0.id(token));
    let found = catch_unwind(AssertUnwindSafe(find)).unwrap_or(None);
    found.map_or(-1, |id| id as i32)
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_token(
    tokenizer: *const DftTokenizer,
    id: i32,
    out: *mut DftBuffer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        give(out, (*tokenizer).0.token_text(id)?.into_bytes());
        Ok(())
    })
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_tokenizer_token_bytes(
    tokenizer: *const DftTokenizer,
    id: i32,
    out: *mut DftBuffer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        give(out, stream::token_bytes(&(*tokenizer).0, id)?);
        Ok(())
    })
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_stream_new(tokenizer: *const DftTokenizer, skip_special_tokens: bool) -> *mut Stream {
    Box::into_raw(Box::new(Stream::new((*tokenizer).0.clone(), skip_special_tokens)))
}

/// # Safety
/// `stream` came from dft_stream_new, or is null.
#[no_mangle]
pub unsafe extern "C" fn dft_stream_free(stream: *mut Stream) {
    if !stream.is_null() {
        drop(Box::from_raw(stream));
    }
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_stream_push(
    stream: *mut Stream,
    id: i32,
    out: *mut DftBuffer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        give(out, (*stream).push(id)?.into_bytes());
        Ok(())
    })
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_stream_finish(stream: *mut Stream, out: *mut DftBuffer, error: *mut DftBuffer) -> i32 {
    border(error, || {
        give(out, (*stream).finish()?.into_bytes());
        Ok(())
    })
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_template_new(
    source: *const u8,
    size_bytes: usize,
    out: *mut *mut Template,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        *out = Box::into_raw(Box::new(Template::compile(text(source, size_bytes)?)?));
        Ok(())
    })
}

/// # Safety
/// `source` came from dft_template_new, or is null.
#[no_mangle]
pub unsafe extern "C" fn dft_template_free(source: *mut Template) {
    if !source.is_null() {
        drop(Box::from_raw(source));
    }
}

/// # Safety
/// As dftext.h says.
#[no_mangle]
pub unsafe extern "C" fn dft_template_render(
    source: *const Template,
    context: *const u8,
    size_bytes: usize,
    options: *const DftRenderOptions,
    out: *mut DftBuffer,
    error: *mut DftBuffer,
) -> i32 {
    border(error, || {
        let c = &*options;
        let options = RenderOptions {
            max_output_bytes: c.max_output_bytes as usize,
            now_unix_s: c.now_unix_s,
            sentinel: char::from_u32(c.sentinel).filter(|&c| c != '\0'),
        };
        give(out, (*source).render(text(context, size_bytes)?, options)?.into_bytes());
        Ok(())
    })
}
