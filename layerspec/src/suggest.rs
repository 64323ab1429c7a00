//! The nearest right name for a misspelt one.

/// The candidate nearest to `word`, if it is near enough to be meant: at most a third of its
/// letters (but at least one) wrong, missing, extra or swapped; case does not count.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = Word::of(word)?;
    let (distance, best) = candidates
        .into_iter()
        .filter_map(|candidate| Some((word.distance(&Word::of(candidate)?), candidate)))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= (best.chars().count() / 3).max(1)).then_some(best)
}

/// Longer words are not compared: nobody misspells those by a letter, and comparing is quadratic.
const MAX_LETTERS: usize = 64;

struct Word(Vec<char>);

impl Word {
    fn of(text: &str) -> Option<Word> {
        let letters: Vec<char> = text.chars().take(MAX_LETTERS + 1).collect();
        let short = letters.len() <= MAX_LETTERS;
        short.then(|| Word(letters.into_iter().flat_map(char::to_lowercase).collect()))
    }

    /// Letters to change, insert, delete or swap with their neighbour to come from one word to
    /// the other (optimal string alignment).
    fn distance(&self, other: &Word) -> usize {
        let (a, b) = (&self.0, &other.0);
        let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
        for i in 1..=a.len() {
            let mut row = vec![i];
            for j in 1..=b.len() {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                row.push(best);
            }
            rows.push(row);
        }
        rows[a.len()][b.len()]
    }
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
