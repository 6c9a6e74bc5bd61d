//! The man pages of C libraries. The synopsis of each function is its header's own.

use std::io;

use roff::{Roff, bold, roman};

use crate::manual::{Page, SOURCE, paragraphs};

/// A page of section 3.
pub struct Functions {
    /// The functions; the page has the name of the first one, and the others' pages are links to it.
    pub names: &'static [&'static str],
    pub about: &'static str,
    pub text: &'static str,
    /// Errnos, and when they come.
    pub errors: &'static [(&'static str, &'static str)],
}

/// A library.
pub struct Library {
    /// The header, and its name in an `#include`.
    pub header: &'static str,
    pub include: &'static str,
    /// The sentence that says how to link.
    pub link: &'static str,
    /// The manual's name, in the title of each page.
    pub manual: &'static str,
    /// The sentence before the errnos.
    pub failed: &'static str,
    /// The page of section 7: name, what it is, description.
    pub overview: (&'static str, &'static str, &'static str),
    /// What else that page points to: name and section.
    pub beside: (&'static str, &'static str),
    pub pages: &'static [Functions],
    /// A paragraph for each page with a function whose declaration has the first text.
    pub common: Option<(&'static str, &'static str)>,
}

impl Library {
    /// The declaration of a function.
    pub fn declaration(&self, name: &str) -> Option<&'static str> {
        let call = format!("{name}(");
        let begins = |at: &usize| *at > 0 && matches!(self.header.as_bytes()[at - 1], b' ' | b'*');
        let at = self.header.match_indices(&call).map(|(at, _)| at).find(begins)?;
        let start = self.header[..at].rfind('\n')? + 1;
        let end = at + self.header[at..].find(';')?;
        Some(&self.header[start..=end])
    }

    /// The functions of the header, by what their names begin with.
    #[cfg(test)]
    pub fn declared(&self, prefix: &str) -> std::collections::BTreeSet<&'static str> {
        let words = self.header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
        words.filter_map(|word| word.split_once('(')).map(|(name, _)| name).filter(|n| n.starts_with(prefix)).collect()
    }

    /// The functions that have a page.
    #[cfg(test)]
    pub fn described(&self) -> std::collections::BTreeSet<&'static str> {
        self.pages.iter().flat_map(|page| page.names).copied().collect()
    }

    /// All pages.
    pub fn all_pages(&self) -> io::Result<Vec<Page>> {
        let mut made = Vec::new();
        for page in self.pages {
            let [first, others @ ..] = page.names else { continue };
            made.push(Page { file: format!("{first}.3"), text: self.functions(page)? });
            for other in others {
                made.push(Page { file: format!("{other}.3"), text: format!(".so man3/{first}.3\n").into_bytes() });
            }
        }
        made.push(Page { file: format!("{}.7", self.overview.0), text: self.overview()? });
        Ok(made)
    }

    fn functions(&self, page: &Functions) -> io::Result<Vec<u8>> {
        let mut text = Roff::new();
        text.control("TH", [page.names[0], "3", "", SOURCE, self.manual]);
        text.control("SH", ["NAME"]).text([roman(format!("{} - {}", page.names.join(", "), page.about))]);
        text.control("SH", ["SYNOPSIS"]).control("EX", []);
        text.text([bold(format!("#include <{}>", self.include))]).text([roman("")]);
        for name in page.names {
            for line in self.declaration(name).unwrap_or_default().lines() {
                text.text([bold(line.replace('\t', "        "))]);
            }
        }
        text.control("EE", []);
        text.text([roman(self.link)]);
        text.control("SH", ["DESCRIPTION"]);
        paragraphs(&mut text, page.text);
        if let Some((part, common)) = self.common
            && page.names.iter().any(|name| self.declaration(name).is_some_and(|text| text.contains(part)))
        {
            text.control("PP", []).text([roman(common)]);
        }
        text.control("SH", ["ERRORS"]);
        text.text([roman(self.failed)]);
        for (errno, when) in page.errors {
            text.control("TP", []).text([bold(*errno)]).text([roman(*when)]);
        }
        text.control("SH", ["SEE ALSO"]).text([bold(self.overview.0), roman("(7)")]);
        let mut made = Vec::new();
        text.to_writer(&mut made)?;
        Ok(made)
    }

    fn overview(&self) -> io::Result<Vec<u8>> {
        let (name, about, description) = self.overview;
        let mut text = Roff::new();
        text.control("TH", [name, "7", "", SOURCE, self.manual]);
        text.control("SH", ["NAME"]).text([roman(format!("{name} - {about}"))]);
        text.control("SH", ["DESCRIPTION"]);
        paragraphs(&mut text, description);
        text.control("SH", ["FUNCTIONS"]);
        for page in self.pages {
            text.control("TP", []).text([bold(page.names.join(", ")), roman("(3)")]).text([roman(page.about)]);
        }
        let (beside, section) = self.beside;
        text.control("SH", ["SEE ALSO"]);
        text.text([bold("softrnic-run"), roman("(1), "), bold(beside), roman(format!("({section})"))]);
        let mut made = Vec::new();
        text.to_writer(&mut made)?;
        Ok(made)
    }
}
