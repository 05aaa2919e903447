//! Names that are unique across a module.

use std::borrow::Cow;

use super::Map;

/// Makes names unique the way XLA does: the number after the last dot is replaced where it is taken.
///
/// HLO text scopes instruction names to their computation, the protobuf form wants them unique in the module.
#[derive(Default)]
pub(super) struct UniqueNames<'a> {
    used: Map<(Cow<'a, str>, i64), ()>,
    /// The next number to try, for stems whose numbers have collided.
    next: Map<Cow<'a, str>, i64>,
}

impl<'a> UniqueNames<'a> {
    pub(super) fn with_capacity(names: usize) -> UniqueNames<'a> {
        UniqueNames { used: Map::with_capacity_and_hasher(names, Default::default()), next: Map::default() }
    }

    pub(super) fn unique(&mut self, name: Cow<'a, str>) -> String {
        let name = sanitized(name);
        let (stem, given) = split_number(&name);
        if self.used.insert((stem.clone(), given.unwrap_or(0)), ()).is_none() {
            return match given {
                Some(number) => format_number(&name, &stem, number),
                None => name.into_owned(),
            };
        }
        let next = self.next.entry(stem.clone()).or_insert(0);
        loop {
            let number = *next;
            *next += 1;
            if self.used.insert((stem.clone(), number), ()).is_none() {
                let bare = number == 0 && given.is_none();
                return if bare { stem.into_owned() } else { format!("{stem}.{number}") };
            }
        }
    }
}

/// The usual case is a number that is written as it would be printed.
fn format_number(name: &str, stem: &str, number: i64) -> String {
    let digits = &name[stem.len() + 1..];
    let canonical = digits == "0" || !digits.starts_with(['0', '-']);
    if canonical { name.to_owned() } else { format!("{stem}.{number}") }
}

fn split_number<'a>(name: &Cow<'a, str>) -> (Cow<'a, str>, Option<i64>) {
    let split = name.rfind('.').filter(|&dot| dot > 0).and_then(|dot| Some((dot, name[dot + 1..].parse().ok()?)));
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
        let unique: Vec<String> = given.iter().map(|&name| names.unique(name.into())).collect();
        assert_eq!(unique, ["x", "x.1", "x.2", "x.3", "x.7", "x.4", "y.0", "y.1", "z.1", "a_a", ".1", "w.1", "w.0"]);
    }
}
