//! tmp
use crate::trace::Trace;
use std::io::{self, Write};
/// tmp
pub fn write_html(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{}", trace.dropped())
}
