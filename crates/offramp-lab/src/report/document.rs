//! An HTML page of paragraphs, charts and tables, for the model's results. The page is self-contained: it has no
//! scripts, and loads no fonts or images.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::figure::{self, Drawn, Figure};

/// Name of the template. The extension makes minijinja escape all values for HTML.
const TEMPLATE_NAME: &str = "document.html";

/// An HTML page.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Title of the page.
    pub title: String,
    /// First paragraphs of the page.
    pub lead: Vec<String>,
    /// Sections after the first paragraphs.
    pub sections: Vec<Section>,
}

/// A section of a page.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Heading of the section.
    pub heading: String,
    /// Paragraphs before the charts.
    pub paragraphs: Vec<String>,
    /// Command that reproduces the figures, if any.
    pub command: Option<String>,
    /// Charts of the section.
    pub figures: Vec<Figure>,
    /// Tables of the section.
    pub tables: Vec<Table>,
}

/// A table of a section.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Title of the table.
    pub caption: String,
    /// Headings of the columns.
    pub head: Vec<String>,
    /// Rows of the table. The first cell of a row is the name of the row.
    pub rows: Vec<Vec<String>>,
    /// Notes for each row, shown below the row over the whole width.
    pub notes: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct Page<'a> {
    title: &'a str,
    lead: &'a [String],
    sections: Vec<PageSection<'a>>,
}

#[derive(Serialize)]
struct PageSection<'a> {
    /// Value of the `id` attribute of the section, for links to the section.
    anchor: String,
    heading: &'a str,
    paragraphs: &'a [String],
    command: Option<&'a str>,
    figures: Vec<Drawn>,
    tables: &'a [Table],
}

impl Document {
    /// Returns the page as HTML. All text is escaped.
    ///
    /// # Panics
    /// Never panics: the template is part of the program, and all its fields exist.
    #[must_use]
    pub fn html(&self) -> String {
        let mut environment = figure::environment();
        environment.add_template(TEMPLATE_NAME, include_str!("document.html")).expect("the template is well-formed");
        let template = environment.get_template(TEMPLATE_NAME).expect("the template was just added");
        template.render(minijinja::value::Serde(self.page())).expect("the template names only fields of the page")
    }

    /// Writes the page to `path`. An existing file is replaced.
    ///
    /// # Errors
    /// Returns an error with the path if the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.html())
            .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
    }

    fn page(&self) -> Page<'_> {
        let sections = self.sections.iter().enumerate().map(|(at, section)| PageSection {
            anchor: format!("s{at}"),
            heading: &section.heading,
            paragraphs: &section.paragraphs,
            command: section.command.as_deref(),
            figures: section.figures.iter().map(Figure::drawn).collect(),
            tables: &section.tables,
        });
        Page { title: &self.title, lead: &self.lead, sections: sections.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_all_that_it_was_given_escaped() {
        let table = Table {
            caption: "figures".to_owned(),
            head: vec!["name".to_owned(), "value".to_owned()],
            rows: vec![vec!["a < b".to_owned(), "7".to_owned()], vec!["c".to_owned(), "8".to_owned()]],
            notes: vec![Vec::new(), vec!["seen & noted".to_owned(), "twice".to_owned()]],
        };
        let section = Section {
            heading: "One".to_owned(),
            paragraphs: vec!["first & second".to_owned()],
            command: Some("offramp model run x --set a.b=\"c\"".to_owned()),
            tables: vec![table],
            ..Section::default()
        };
        let page = Document { title: "T".to_owned(), lead: vec!["L".to_owned()], sections: vec![section] }.html();
        let note = "<td class=\"note\" colspan=\"1\">seen &amp; noted<br>twice</td>";
        for part in ["<h1>T</h1>", "first &amp; second", "a &lt; b", "offramp model run x", note, "</html>"] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert!(!page.contains("http") && !page.contains("<script"), "nothing from anywhere else");
    }
}
