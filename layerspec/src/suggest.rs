//! The nearest right name for a misspelt one.

/// The candidate nearest to `word`, if it is near enough to be meant: at most a third of its
/// letters (but at least one) are wrong, missing, extra or swapped. Case does not count.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = comparable(word)?;
    let (distance, best) = candidates
        .into_iter()
        .filter_map(|candidate| {
            Some((strsim::osa_distance(&word, &comparable(candidate)?), candidate))
        })
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= (best.chars().count() / 3).max(1)).then_some(best)
}

/// The longest word to compare, because the time is quadratic in the length.
const MAX_LETTERS: usize = 64;

fn comparable(text: &str) -> Option<String> {
    (text.chars().take(MAX_LETTERS + 1).count() <= MAX_LETTERS).then(|| text.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_what_was_meant() {
        let names = ["in_features", "out_features", "bias"];
        assert_eq!(nearest("out_feature", names), Some("out_features"));
        assert_eq!(nearest("infeatures", names), Some("in_features"));
        assert_eq!(nearest("Bais", names), Some("bias"));
        assert_eq!(nearest("momentum", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), names), None);
    }
}
