//! `{% generation %}` marks what the assistant said, for training masks. It changes nothing in the text, but it opens a
//! scope of its own, so it becomes `{% with %}`, which the engine has.

/// `source` with the tags `generation` and `endgeneration` replaced; comments, raw blocks and strings stay as they are.
pub fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(open) = rest.find('{') {
        let (before, tail) = rest.split_at(open);
        out.push_str(before);
        let n = match tail.as_bytes().get(1) {
            Some(b'%') => copy_block(tail, &mut raw, &mut out),
            Some(b'#') if !raw => copy(tail, tail.find("#}").map_or(tail.len(), |at| at + 2), &mut out),
            Some(b'{') if !raw => copy(tail, end_of_expression(tail, "}}"), &mut out),
            _ => copy(tail, 1, &mut out),
        };
        rest = &tail[n..];
    }
    out.push_str(rest);
    out
}

fn copy(text: &str, n: usize, out: &mut String) -> usize {
    out.push_str(&text[..n]);
    n
}

/// Copies the block that `text` starts with, or its replacement; answers its length in `text`.
fn copy_block(text: &str, raw: &mut bool, out: &mut String) -> usize {
    let n = end_of_expression(text, "%}");
    let inner = text[..n].trim_start_matches("{%").trim_end_matches("%}");
    let name = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
    match name {
        _ if !text[..n].ends_with("%}") => {} // unfinished: the parser says so
        "raw" => *raw = true,
        "endraw" => *raw = false,
        "generation" if !*raw => {
            out.push_str(&text[..n].replacen("generation", "with", 1));
            return n;
        }
        "endgeneration" if !*raw => {
            out.push_str(&text[..n].replacen("endgeneration", "endwith", 1));
            return n;
        }
        _ => {}
    }
    copy(text, if *raw && name != "raw" { 2 } else { n }, out)
}

/// The offset behind `close`, strings skipped; all of `text` when it does not come.
fn end_of_expression(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), c) if c == q => quote = None,
            (None, c @ (b'"' | b'\'')) => quote = Some(c),
            (None, _) if text.as_bytes()[at..].starts_with(close.as_bytes()) => return at + close.len(),
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::replace_generation_tags;

    #[test]
    fn only_tags_are_replaced() {
        let source = "{%- generation -%}a{%endgeneration%}{# {% generation %} #}{{ '{% generation %}' }}\
                      {% raw %}{% generation %}{% endraw %}{% generation %}generation";
        let expected = "{%- with -%}a{%endwith%}{# {% generation %} #}{{ '{% generation %}' }}\
                        {% raw %}{% generation %}{% endraw %}{% with %}generation";
        assert_eq!(replace_generation_tags(source), expected);
    }

    #[test]
    fn unfinished_sources_pass_through() {
        for source in ["{", "{%", "{{ 'a", "{# x", "{% generation", "é{% x 'é\\"] {
            assert_eq!(replace_generation_tags(source), source);
        }
    }
}
