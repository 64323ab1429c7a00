//! Running text: single spaces, no tags, sentence by sentence.

/// A text and its translation.
pub(super) type Pair = (String, String);

pub(super) fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Without what stands between `<` and `>`.
pub(super) fn untagged(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, tag)) = rest.split_once('<') {
        let Some((name, after)) = tag.split_once('>') else { break };
        plain.push_str(before);
        if name.is_empty() {
            plain.push_str("<>");
        }
        rest = after;
    }
    plain + rest
}

/// Sentence by sentence where both texts have as many, else as they are. Both have single spaces.
pub(super) fn by_sentence(english: &str, german: &str) -> Vec<Pair> {
    let (ours, theirs) = (sentences(english), sentences(german));
    if ours.len() != theirs.len() {
        return vec![(english.to_string(), german.to_string())];
    }
    ours.into_iter().zip(theirs).map(|(one, other)| (one.to_string(), other.to_string())).collect()
}

/// A sentence begins with a capital letter after the end of another.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (space, _) in text.match_indices(' ') {
        let capital = |next: char| next.is_ascii_uppercase() || "ÄÖÜÉÈÀ".contains(next);
        if ends(&text[start..space]) && text[space + 1..].starts_with(capital) {
            found.push(&text[start..space]);
            start = space + 1;
        }
    }
    found.push(&text[start..]);
    found
}

/// Whether it ends as a sentence does.
pub(super) fn ends(text: &str) -> bool {
    text.ends_with(['.', '!', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_into_sentences() {
        assert_eq!(sentences("Is it? Über e.g. two. so 3. 4"), ["Is it?", "Über e.g. two. so 3. 4"]);
        assert_eq!(sentences(""), [""]);
        let pair = |one: &str, other: &str| (one.to_string(), other.to_string());
        assert_eq!(by_sentence("A b. C d.", "E f. G h."), [pair("A b.", "E f."), pair("C d.", "G h.")]);
        assert_eq!(by_sentence("A b. C d.", "E f, g h."), [pair("A b. C d.", "E f, g h.")]);
    }

    #[test]
    fn tags_go_and_what_is_none_stays() {
        assert_eq!(untagged("<p>a <b class=\"x\">c</b></p>"), "a c");
        assert_eq!(untagged("1 < 2"), "1 < 2");
        assert_eq!(untagged("<i>=</i> or <>"), "= or <>");
        assert_eq!(single_spaced(" a\n\u{a0} b\t"), "a b");
    }
}
