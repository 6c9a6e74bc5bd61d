//! Columns, aligned.

use std::fmt::Display;

use crate::out::say;

/// A table that grows by cells and rows.
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
    current: Vec<String>,
}

impl Table {
    /// With a heading.
    pub fn new<T: Display>(heading: impl IntoIterator<Item = T>) -> Self {
        let heading = heading.into_iter().map(|cell| cell.to_string()).collect();
        Table { heading, rows: Vec::new(), current: Vec::new() }
    }

    /// The next cell of the row.
    pub fn cell(&mut self, text: impl Display) {
        self.current.push(text.to_string());
    }

    /// Ends the row.
    pub fn end_row(&mut self) {
        self.rows.push(std::mem::take(&mut self.current));
    }

    /// A line a row: numbers to the right, words to the left.
    fn lines(&self, heading: bool) -> Vec<String> {
        let all = || heading.then_some(&self.heading).into_iter().chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| all().filter_map(move |row| row.get(column));
        let width = |column: usize| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        // By what most of a column is: words where the first row has some.
        let words = |column: usize| {
            let first =
                self.rows.iter().filter_map(|row| row.get(column)).find(|cell| !cell.is_empty() && *cell != "-");
            first.is_some_and(|cell| cell.starts_with(|c: char| c.is_alphabetic() || "<>".contains(c)))
        };
        let shape: Vec<(usize, bool)> = (0..columns).map(|column| (width(column), words(column))).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&shape).map(|(cell, (width, words))| match words {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        all().map(line).collect()
    }

    /// Prints it.
    pub fn print(&self) {
        self.lines(true).iter().for_each(|line| say!("  {line}"));
    }

    /// Prints it without the heading.
    pub fn print_rows(&self) {
        self.lines(false).iter().for_each(|line| say!("  {line}"));
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
        assert_eq!(table.lines(true), ["       bytes     us", "SEND       8  12.35", "FETCH   1024   1.00"]);
        assert_eq!(table.lines(false).len(), 2);
    }
}
