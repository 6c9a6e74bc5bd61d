//! Tables of aligned columns.

use std::fmt::Display;

use crate::out::say;

/// A table that grows by cells and rows.
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
    current: Vec<String>,
}

impl Table {
    /// A table with a heading.
    pub fn new<T: Display>(heading: impl IntoIterator<Item = T>) -> Self {
        let heading = heading.into_iter().map(|cell| cell.to_string()).collect();
        Table { heading, rows: Vec::new(), current: Vec::new() }
    }

    /// Add the next cell of the row.
    pub fn cell(&mut self, text: impl Display) {
        self.current.push(text.to_string());
    }

    /// End the row.
    pub fn end_row(&mut self) {
        self.rows.push(std::mem::take(&mut self.current));
    }

    /// True if it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// True for a column of words, by its first cell that is not empty.
    fn has_words(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        let first = cells.find(|cell| !cell.is_empty() && *cell != "-");
        first.is_some_and(|cell| cell.starts_with(|c: char| c.is_alphabetic() || "<>".contains(c)))
    }

    /// One line for each row: numbers to the right, words to the left.
    pub fn lines(&self) -> Vec<String> {
        let all = || std::iter::once(&self.heading).chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| all().filter_map(move |row| row.get(column));
        let width = |column: usize| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let shape: Vec<(usize, bool)> = (0..columns).map(|column| (width(column), self.has_words(column))).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&shape).map(|(cell, (width, words))| match words {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        all().map(line).collect()
    }

    /// One line for each row, in Markdown.
    pub fn markdown(&self) -> Vec<String> {
        let columns = self.heading.len();
        let line = |row: &[String]| {
            let cells = (0..columns).map(|column| row.get(column).map_or("", String::as_str).replace('|', "\\|"));
            format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
        };
        let marks = (0..columns).map(|column| if self.has_words(column) { "---" } else { "---:" });
        let marks = format!("|{}|", marks.collect::<Vec<_>>().join("|"));
        [line(&self.heading), marks].into_iter().chain(self.rows.iter().map(|row| line(row))).collect()
    }

    /// Print the table.
    pub fn print(&self) {
        self.lines().iter().for_each(|line| say!("  {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right_and_words_to_the_left() {
        let mut table = Table::new(["", "bytes", "us"]);
        for (name, bytes, us) in [("SEND", 8, 12.345), ("FETCH", 1024, 1.0)] {
            table.cell(name);
            table.cell(bytes);
            table.cell(format_args!("{us:.2}"));
            table.end_row();
        }
        assert_eq!(table.lines(), ["       bytes     us", "SEND       8  12.35", "FETCH   1024   1.00"]);
        assert_eq!(
            table.markdown(),
            ["|  | bytes | us |", "|---|---:|---:|", "| SEND | 8 | 12.35 |", "| FETCH | 1024 | 1.00 |"]
        );
    }
}
