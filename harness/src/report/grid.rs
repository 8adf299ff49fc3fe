//! A table before it is drawn: for the terminal or for Markdown.

use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table};

/// What stands where there is nothing to say.
const EMPTY: &str = "–";

/// A table whose columns without a value are left out.
#[derive(Debug, Default)]
pub struct Grid {
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    title: String,
    left: bool,
    cells: Vec<Option<String>>,
}

impl Grid {
    /// Adds a column of words.
    pub fn words(&mut self, title: &str, cells: Vec<Option<String>>) {
        self.add(title, true, cells);
    }

    /// Adds a column of numbers. A line break in the title is one in the terminal, a space in Markdown.
    pub fn numbers(&mut self, title: &str, cells: Vec<Option<String>>) {
        self.add(title, false, cells);
    }

    fn add(&mut self, title: &str, left: bool, cells: Vec<Option<String>>) {
        if cells.iter().any(Option::is_some) {
            self.columns.push(Column { title: title.to_owned(), left, cells });
        }
    }

    /// Number of columns that hold something.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// For a terminal of `width` columns; long words wrap.
    pub fn terminal(&self, width: u16) -> String {
        let line = LineStyle::none().fill('─').junction('─');
        let mut table = Table::new();
        table.load_style(NOTHING.top_border(line).header_separator(line).bottom_border(line));
        table.set_content_arrangement(ContentArrangement::Dynamic).force_no_tty().set_width(width);
        self.fill(&mut table, |title| title.to_owned());
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        trimmed(&table)
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).force_no_tty();
        self.fill(&mut table, |title| title.replace('\n', " ").replace("- ", ""));
        // comfy-table writes no alignment into the rule under the header; Markdown needs it there.
        let text = trimmed(&table);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if let Some(rule) = lines.get_mut(1) {
            *rule = self.rule(rule);
        }
        lines.join("\n") + "\n"
    }

    /// As an HTML table.
    pub fn html(&self) -> String {
        let row = |tag: &str, of: &dyn Fn(&Column) -> String| {
            let cells = self.columns.iter().map(|c| {
                let class = if c.left { "" } else { " class=\"n\"" };
                format!("<{tag}{class}>{}</{tag}>", escaped(&of(c)))
            });
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows = self.columns.first().map_or(0, |c| c.cells.len());
        let text =
            |c: &Column, r: usize| c.cells.get(r).cloned().flatten().unwrap_or_else(|| EMPTY.to_owned());
        let head = row("th", &|c| c.title.replace("-\n", "").replace('\n', " "));
        let body: String = (0..rows).map(|r| row("td", &|c| text(c, r))).collect();
        format!("<table>\n<thead>{head}</thead>\n<tbody>{body}</tbody>\n</table>\n")
    }

    fn rule(&self, plain: &str) -> String {
        let parts: Vec<&str> = plain.trim_matches('|').split('|').collect();
        let ruled = parts.iter().zip(&self.columns).map(|(part, column)| {
            let dashes = "-".repeat(part.chars().count().saturating_sub(1));
            if column.left { format!(":{dashes}") } else { format!("{dashes}:") }
        });
        format!("|{}|", ruled.collect::<Vec<_>>().join("|"))
    }

    fn fill(&self, table: &mut Table, title: impl Fn(&str) -> String) {
        table.set_header(self.columns.iter().map(|c| aligned(title(&c.title), c.left)));
        let rows = self.columns.first().map_or(0, |c| c.cells.len());
        for r in 0..rows {
            table.add_row(self.columns.iter().map(|c| {
                let text = c.cells.get(r).cloned().flatten().unwrap_or_else(|| EMPTY.to_owned());
                aligned(text, c.left)
            }));
        }
    }
}

/// Text that HTML takes for nothing else.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn aligned(text: String, left: bool) -> Cell {
    // A bar would end the cell in Markdown.
    let cell = Cell::new(text.replace('|', "/"));
    cell.set_alignment(if left { CellAlignment::Left } else { CellAlignment::Right })
}

fn trimmed(table: &Table) -> String {
    table.lines().map(|l| l.trim_end().to_owned() + "\n").collect()
}
