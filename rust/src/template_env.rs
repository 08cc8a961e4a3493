//! The environment that chat templates are written for: Jinja2 with Hugging Face's settings, functions and filters.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};

use crate::harden;
use crate::python::{self, JsonStyle, Limits, Measure};
use crate::template::RenderOptions;

pub fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default()
}

pub fn environment(options: &RenderOptions) -> Environment<'static> {
    let mut env = Environment::new();
    bind(&mut env, options);
    env.set_unknown_method_callback(method);
    env.add_function("raise_exception", raise_exception);
    // The first's indentation grows with the square of the depth; the second gives dictionaries that look into each
    // other on every access. Jinja2 has no `chain`, and no chat template shows values by `pprint`.
    env.remove_filter("pprint");
    env.remove_filter("chain");
    env.add_filter(harden::BOUNDED, |state: &State, value: Value| measured(state, value, true));
    env.add_filter(harden::STORED, |state: &State, value: Value| measured(state, value, false));
    // Jinja2 asks whether a value has a length and items, or can be walked: strings and dictionaries do.
    env.add_test("sequence", |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map));
    env.add_test("iterable", |v: &Value| v.kind() == ValueKind::String || v.try_iter().is_ok());
    env.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
    env
}

/// What depends on the single rendering.
fn bind(env: &mut Environment<'static>, options: &RenderOptions) {
    let limits = || Limits { max_bytes: options.max_output_bytes, sentinel: options.sentinel };
    let (for_output, for_string, for_json, for_concat) = (limits(), limits(), limits(), limits());
    env.set_formatter(move |out, state, value| write_value(out, state, value, &for_output));
    env.add_filter("string", move |state: &State, value: Value| -> Result<Value, Error> {
        if !python::needs_python(&value) {
            return Ok(value);
        }
        let text = python::to_str(&value, &for_string)?;
        charge(state, text.len())?;
        Ok(Value::from(text))
    });
    env.add_filter(harden::CONCAT, move |state: &State, left: Value, right: Value| -> Result<Value, Error> {
        let text = [python::to_str(&left, &for_concat)?, python::to_str(&right, &for_concat)?];
        charge(state, text[0].len() + text[1].len())?;
        Ok(Value::from(text.concat()))
    });
    env.add_filter(
        "tojson",
        move |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| -> Result<Value, Error> {
            let text = python::to_json(&value, &json_style(&args, &kwargs)?, &for_json)?;
            charge(state, text.len())?;
            Ok(Value::from(text))
        },
    );
    let now_unix_s = options.now_unix_s;
    env.add_function("strftime_now", move |format: &str| strftime(format, now_unix_s));
}

fn write_value(out: &mut Output, state: &mut State, value: &Value, limits: &Limits) -> Result<(), Error> {
    let text = match value.as_str() {
        Some(text) => return Ok(out.write_str(text)?),
        None => python::to_str(value, limits)?,
    };
    charge(state, text.len())?;
    Ok(out.write_str(&text)?)
}

/// The most that one value may cost to walk through: ten thousand messages cost some 60 000, a text of 10 MB 160 000.
const MAX_COST: u64 = 250_000;
/// Walking costs a sixteenth of what an instruction does.
const COST_PER_FUEL: u64 = 16;
/// A list's item takes 24 bytes and room to grow.
const ITEM_BYTES: usize = 32;

/// `value`, unless walking through it would take too long; what is computed on demand becomes a list.
fn measured(state: &State, value: Value, allow_namespaces: bool) -> Result<Value, Error> {
    if value.as_object().is_none() {
        return Ok(value);
    }
    let cost = Measure::new(MAX_COST, allow_namespaces).of(&value)?;
    state.consume_fuel(cost / COST_PER_FUEL)?;
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    charge(state, items.len() * ITEM_BYTES)?;
    Ok(Value::from(items))
}

fn charge(state: &State, n_bytes: usize) -> Result<(), Error> {
    state.consume_fuel(n_bytes as u64 / 64)
}

fn raise_exception(message: Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
}

/// tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)
fn json_style(args: &[Value], kwargs: &Kwargs) -> Result<JsonStyle, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let option = |index: usize| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(NAMES[index])?;
        Ok(named.or_else(|| args.get(index).cloned()).filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let indent = match option(1)? {
        None => None,
        Some(text) if text.kind() == ValueKind::String => text.as_str().map(str::to_owned),
        Some(n) => Some(" ".repeat(usize::try_from(n.as_i64().unwrap_or(0).clamp(0, 64)).unwrap_or(0))),
    };
    let (item_separator, key_separator) = match option(2)? {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        ensure_ascii: option(0)?.is_some_and(|v| v.is_true()),
        sort_keys: option(3)?.is_some_and(|v| v.is_true()),
        indent,
        item_separator,
        key_separator,
    };
    kwargs.assert_all_used()?;
    Ok(style)
}

/// Local time, as Python's datetime.now().strftime.
fn strftime(format: &str, now_unix_s: i64) -> Result<String, Error> {
    let failed = || Error::new(ErrorKind::InvalidOperation, "strftime_now: the format does not fit 256 bytes");
    let format = std::ffi::CString::new(format).map_err(|_| failed())?;
    if format.is_empty() {
        return Ok(String::new());
    }
    let mut text = [0u8; 256];
    // SAFETY: both structures are plain C data; the buffer's size is given.
    let n = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        let seconds: libc::time_t = now_unix_s;
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return Err(failed());
        }
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &parts)
    };
    if n == 0 {
        return Err(failed());
    }
    Ok(String::from_utf8_lossy(&text[..n]).into_owned())
}

/// Methods of Python's str and dict: the library's list, and those it lacks.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(answer) = string_method(state, text, name, args)? {
            return Ok(answer);
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

fn string_method(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let word = || -> Result<&str, Error> {
        args.first().and_then(Value::as_str).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("{name} needs a string as its first argument"))
        })
    };
    let three = |a: &str, b: &str, c: &str| Value::from(Tuple::from([a, b, c].map(Value::from)));
    let answer = match name {
        "removeprefix" => Value::from(text.strip_prefix(word()?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(word()?).unwrap_or(text)),
        "partition" => {
            let at = word()?;
            text.split_once(at).map_or_else(|| three(text, "", ""), |(a, b)| three(a, at, b))
        }
        "rpartition" => {
            let at = word()?;
            text.rsplit_once(at).map_or_else(|| three("", "", text), |(a, b)| three(a, at, b))
        }
        "rsplit" => {
            let at = word()?;
            let n = args.get(1).and_then(Value::as_i64).and_then(|n| usize::try_from(n).ok());
            let mut parts: Vec<Value> = match n {
                Some(n) => text.rsplitn(n.saturating_add(1), at).map(Value::from).collect(),
                None => text.rsplit(at).map(Value::from).collect(),
            };
            parts.reverse();
            charge(state, text.len() + parts.len() * 24)?;
            Value::from(parts)
        }
        _ => return Ok(None),
    };
    Ok(Some(answer))
}
