//! Values as Python shows them: str(), repr() and json.dumps(), which is what templates were written against.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// A value may contain itself (namespaces) or the same list a billion times: both must end.
pub struct Limits {
    pub max_bytes: usize,
    pub sentinel: Option<char>,
}

const MAX_DEPTH: usize = 100;

pub struct JsonStyle {
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
}

struct Writer<'a> {
    out: String,
    limits: &'a Limits,
}

/// str(value); undefined is nothing.
pub fn to_str(value: &Value, limits: &Limits) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut writer = Writer { out: String::new(), limits };
    writer.repr(value, 0)?;
    Ok(writer.out)
}

/// json.dumps(value, ...).
pub fn to_json(value: &Value, style: &JsonStyle, limits: &Limits) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), limits };
    writer.json(value, style, 0)?;
    Ok(writer.out)
}

/// Counts what walking all through `value` costs: one for each value and each 64 bytes of text, the same value counted
/// wherever it stands.
pub struct Measure {
    pub max_cost: u64,
    pub allow_namespaces: bool,
    cost: u64,
}

impl Measure {
    pub fn new(max_cost: u64, allow_namespaces: bool) -> Measure {
        Measure { max_cost, allow_namespaces, cost: 0 }
    }

    /// The cost, or why the value is refused.
    pub fn of(mut self, value: &Value) -> Result<u64, Error> {
        self.walk(value, 0)?;
        Ok(self.cost)
    }

    fn walk(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.cost += 1 + value.as_str().map_or(0, |text| text.len() as u64 / 64);
        if self.cost > self.max_cost {
            return Err(Error::new(ErrorKind::OutOfFuel, "a value is too large to be worked on"));
        }
        let Some(object) = value.as_object() else { return Ok(()) };
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply to be worked on"));
        }
        if !self.allow_namespaces && object.type_name().contains("amespace") {
            return Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot be stored in a namespace"));
        }
        match value.kind() {
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.walk(&key, depth + 1)?;
                    self.walk(&value.get_item(&key)?, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.walk(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Does str() differ from what the engine writes by itself?
pub fn needs_python(value: &Value) -> bool {
    !matches!(value.kind(), ValueKind::String | ValueKind::Undefined | ValueKind::Bytes)
}

impl Writer<'_> {
    fn check(&self, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value nested too deeply to be written out"));
        }
        if self.out.len() > self.limits.max_bytes {
            return Err(Error::new(ErrorKind::OutOfFuel, "value too large to be written out"));
        }
        Ok(())
    }

    fn repr(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.check(depth)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("None"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.repr_str(value.as_str().unwrap_or_default()),
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::Map => {
                self.out.push('{');
                for (n, key) in value.try_iter()?.enumerate() {
                    self.separate(n, ", ");
                    self.repr(&key, depth + 1)?;
                    self.out.push_str(": ");
                    self.repr(&value.get_item(&key)?, depth + 1)?;
                }
                self.out.push('}');
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let tuple = value.is_tuple();
                self.out.push(if tuple { '(' } else { '[' });
                let mut n_items = 0;
                for (n, item) in value.try_iter()?.enumerate() {
                    self.separate(n, ", ");
                    self.repr(&item, depth + 1)?;
                    n_items = n + 1;
                }
                if tuple && n_items == 1 {
                    self.out.push(',');
                }
                self.out.push(if tuple { ')' } else { ']' });
            }
            _ => self.plain(value),
        }
        Ok(())
    }

    /// Objects of the engine itself, as it names them.
    fn plain(&mut self, value: &Value) {
        self.out.push_str(&format!("<{}>", value.kind()));
    }

    fn separate(&mut self, n: usize, separator: &str) {
        if n > 0 {
            self.out.push_str(separator);
        }
    }

    fn repr_str(&mut self, text: &str) {
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        self.out.push(quote);
        for c in text.chars() {
            match c {
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\\' => self.out.push_str("\\\\"),
                c if c == quote => self.out.extend(['\\', c]),
                c if Some(c) == self.limits.sentinel => self.out.push(c),
                c if !is_printable(c) => self.out.push_str(&match c as u32 {
                    n @ 0..0x100 => format!("\\x{n:02x}"),
                    n @ 0x100..0x10000 => format!("\\u{n:04x}"),
                    n => format!("\\U{n:08x}"),
                }),
                c => self.out.push(c),
            }
        }
        self.out.push(quote);
    }

    fn json(&mut self, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        self.check(depth)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&json_number(value)),
            ValueKind::String => self.json_str(value.as_str().unwrap_or_default(), style),
            ValueKind::Map => self.json_map(value, style, depth)?,
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut empty = true;
                for item in value.try_iter()? {
                    self.json_next(&mut empty, style, depth + 1);
                    self.json(&item, style, depth + 1)?;
                }
                self.json_end(empty, style, depth);
                self.out.push(']');
            }
            other => {
                let words = format!("a value of type {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, words));
            }
        }
        Ok(())
    }

    fn json_map(&mut self, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if style.sort_keys {
            keys.sort();
        }
        let mut empty = true;
        for key in keys {
            self.json_next(&mut empty, style, depth + 1);
            match key.kind() {
                ValueKind::String => self.json_str(key.as_str().unwrap_or_default(), style),
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool => self.out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
                _ => self.out.push_str(&format!("\"{}\"", json_number(&key))),
            }
            self.out.push_str(&style.key_separator);
            self.json(&value.get_item(&key)?, style, depth + 1)?;
        }
        self.json_end(empty, style, depth);
        self.out.push('}');
        Ok(())
    }

    fn json_next(&mut self, empty: &mut bool, style: &JsonStyle, depth: usize) {
        if !std::mem::replace(empty, false) {
            self.out.push_str(&style.item_separator);
        }
        self.json_line(style, depth);
    }

    fn json_end(&mut self, empty: bool, style: &JsonStyle, depth: usize) {
        if !empty {
            self.json_line(style, depth);
        }
    }

    fn json_line(&mut self, style: &JsonStyle, depth: usize) {
        if let Some(indent) = &style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn json_str(&mut self, text: &str, style: &JsonStyle) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{C}' => self.out.push_str("\\f"),
                c if Some(c) == self.limits.sentinel => self.out.push(c),
                c if (c as u32) < 0x20 || (style.ensure_ascii && (c as u32) >= 0x7F) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// str.isprintable for one character, without the unassigned ones: they come and go with Unicode's versions.
fn is_printable(c: char) -> bool {
    let format = matches!(c, '\u{AD}' | '\u{600}'..='\u{605}' | '\u{61C}' | '\u{6DD}' | '\u{70F}' | '\u{180E}'
        | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}'
        | '\u{FFF9}'..='\u{FFFB}' | '\u{E0001}'..='\u{E007F}');
    let private = matches!(c, '\u{E000}'..='\u{F8FF}' | '\u{F0000}'..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || format || private)
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        other => other.into(),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// repr(float): the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "nan".into() } else if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let text = format!("{x:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_as_in_python() {
        for (x, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (-2.5e300, "-2.5e+300"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(float(x), text);
        }
    }
}
