//! Names that are unique across a module.

use std::borrow::Cow;
use std::collections::HashSet;

use foldhash::fast::RandomState;

use super::Map;
use crate::proto::InlineString;

/// Makes names unique the way XLA does: the number after the last dot is replaced where it is taken.
///
/// HLO text scopes instruction names to their computation, the protobuf form wants them unique in the module.
#[derive(Default)]
pub(super) struct UniqueNames<'a> {
    /// By what stands before the last dot; a module has few of them and many numbers of each.
    numbers: Map<Cow<'a, str>, Numbers>,
}

/// The numbers that are taken. Names without one have 0.
#[derive(Default)]
struct Numbers {
    first: Option<i64>,
    others: HashSet<i64, RandomState>,
    /// The next one to try where they have collided.
    next: i64,
}

impl Numbers {
    /// Takes a number; false if it is taken.
    fn take(&mut self, number: i64) -> bool {
        if self.first.is_none() {
            self.first = Some(number);
            return true;
        }
        self.first != Some(number) && self.others.insert(number)
    }

    fn take_next(&mut self) -> i64 {
        loop {
            let number = self.next;
            self.next += 1;
            if self.take(number) {
                return number;
            }
        }
    }
}

impl<'a> UniqueNames<'a> {
    pub(super) fn unique(&mut self, name: Cow<'a, str>) -> InlineString {
        let name = sanitized(name);
        let (stem, given) = split_number(&name);
        let numbers = self.numbers.entry(stem.clone()).or_default();
        let (number, is_spelled) = if numbers.take(given.unwrap_or(0)) {
            (given.unwrap_or(0), given.is_none_or(|_| is_canonical(&name[stem.len() + 1..])))
        } else {
            let number = numbers.take_next();
            (number, number == 0 && *stem == *name)
        };
        if is_spelled { (*name).into() } else { format!("{stem}.{number}").into() }
    }
}

/// Whether a number is written as it would be printed.
fn is_canonical(digits: &str) -> bool {
    digits == "0" || !digits.starts_with(['0', '-'])
}

fn split_number<'a>(name: &Cow<'a, str>) -> (Cow<'a, str>, Option<i64>) {
    let dot = name.bytes().rposition(|byte| byte == b'.').filter(|&dot| dot > 0);
    let split = dot.and_then(|dot| Some((dot, name[dot + 1..].parse().ok()?)));
    let Some((dot, number)) = split else {
        return (name.clone(), None);
    };
    let stem = match name {
        Cow::Borrowed(name) => Cow::Borrowed(&name[..dot]),
        Cow::Owned(name) => Cow::Owned(name[..dot].to_owned()),
    };
    (stem, Some(number))
}

/// XLA keeps names that start with two underscores for itself.
fn sanitized(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.starts_with("__") && !name.starts_with("__xla_") { format!("a{}", &name[1..]).into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_replaced_where_taken() {
        let mut names = UniqueNames::default();
        let given = ["x", "x", "x.2", "x", "x.7", "x.7", "y.0", "y", "z.01", "__a", ".1", "w.1", "w.1"];
        let unique: Vec<InlineString> = given.iter().map(|&name| names.unique(name.into())).collect();
        assert_eq!(unique, ["x", "x.1", "x.2", "x.3", "x.7", "x.4", "y.0", "y.1", "z.1", "a_a", ".1", "w.1", "w.0"]);
    }
}
