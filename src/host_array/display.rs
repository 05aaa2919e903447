//! Arrays as text, in NumPy's manner.

use std::fmt;

use super::HostArray;
use super::element::write_text;

/// Arrays with more elements than this are shown by their edges.
const WHOLE_UP_TO: usize = 1000;
/// Elements kept at each end of a dimension that is shown by its edges.
const EDGE: usize = 3;
const LINE_WIDTH: usize = 80;

/// Nested brackets; more than 1000 elements are shown by three at each end of every dimension, all of them with `{:#}`.
impl fmt::Display for HostArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elided = !f.alternate() && self.num_elements() > WHOLE_UP_TO;
        let mut printer = Printer { array: self, elided, width: 0 };
        printer.width = printer.widest(0, 0);
        let mut text = String::new();
        printer.print(0, 0, &mut text);
        f.write_str(&text)
    }
}

struct Printer<'a> {
    array: &'a HostArray,
    elided: bool,
    /// Elements are padded on the left to this many characters.
    width: usize,
}

impl Printer<'_> {
    /// The indices of a dimension that are shown; `None` stands for those left out.
    fn shown(&self, size: usize) -> impl Iterator<Item = Option<usize>> + use<> {
        let cut = self.elided && size > 2 * EDGE;
        let head = if cut { EDGE } else { size };
        let tail = if cut { size - EDGE } else { size };
        (0..head).map(Some).chain(cut.then_some(None)).chain((tail..size).map(Some))
    }

    fn element(&self, position: usize) -> String {
        let size = self.array.dtype().size();
        let mut text = String::new();
        if let Some(bytes) = self.array.data().get(position * size..(position + 1) * size) {
            write_text(self.array.dtype(), bytes, &mut text);
        }
        text
    }

    fn widest(&self, dim: usize, position: usize) -> usize {
        let dims = self.array.dims();
        let Some(&size) = dims.get(dim) else { return self.element(position).len() };
        if self.array.size() == 0 {
            return 0;
        }
        self.shown(size).flatten().map(|index| self.widest(dim + 1, position * size + index)).max().unwrap_or(0)
    }

    /// Prints what lies under the leading `dim` indices, of which `position` is the linear index.
    fn print(&self, dim: usize, position: usize, text: &mut String) {
        let dims = self.array.dims();
        let Some(&size) = dims.get(dim) else { return text.push_str(&self.element(position)) };
        text.push('[');
        if self.array.size() != 0 {
            let innermost = dim + 1 == dims.len();
            let indent = dim + 1;
            let mut column = indent;
            for (nth, index) in self.shown(size).enumerate() {
                let piece = match index {
                    None => "...".to_owned(),
                    Some(index) if innermost => format!("{:>1$}", self.element(position * size + index), self.width),
                    Some(index) => {
                        let mut piece = String::new();
                        self.print(dim + 1, position * size + index, &mut piece);
                        piece
                    }
                };
                let wraps = innermost && column + 1 + piece.len() >= LINE_WIDTH;
                if nth > 0 && innermost && !wraps {
                    text.push(' ');
                    column += 1;
                } else if nth > 0 {
                    let lines = if innermost { 1 } else { dims.len() - dim - 1 };
                    text.extend(std::iter::repeat_n('\n', lines));
                    text.extend(std::iter::repeat_n(' ', indent));
                    column = indent;
                }
                column += piece.len();
                text.push_str(&piece);
            }
        }
        text.push(']');
    }
}
