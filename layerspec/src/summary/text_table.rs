//! Text in aligned columns.

use std::fmt;

/// The side of a column on which a text stands.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows of `N` texts under a head.
pub(super) struct TextTable<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<N> {
    pub(super) fn new(head: [(&str, Align); N]) -> Self {
        TextTable {
            align: head.map(|(_, align)| align),
            rows: vec![head.map(|(title, _)| title.to_owned())],
        }
    }

    pub(super) fn push(&mut self, row: [String; N]) {
        self.rows.push(row);
    }
}

/// Every column is as wide as its widest text; lines carry no spaces at their end.
impl<const N: usize> fmt::Display for TextTable<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = text.chars().count().max(*width);
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for ((text, width), align) in row.iter().zip(widths).zip(self.align) {
                match align {
                    Align::Left => line.push_str(&format!("{text:<width$}  ")),
                    Align::Right => line.push_str(&format!("{text:>width$}  ")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
