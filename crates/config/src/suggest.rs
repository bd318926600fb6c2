//! "did you mean": the nearest known name to one that is not known.

use strsim::osa_distance;

/// Longer names get no suggestion, because the time to compute a distance grows with the product of both lengths.
const NAME_CHARS_MAX: usize = 64;

/// The candidate with the smallest edit distance from `name`, if it is near enough to be what was meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_with_distance(name, candidates).map(|(_, candidate)| candidate)
}

/// Finds the same candidate as [`nearest`], and its distance.
pub(super) fn nearest_with_distance<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<(usize, &'a str)> {
    let name: Vec<char> = name.chars().take(NAME_CHARS_MAX + 1).map(normalized).collect();
    if name.is_empty() || name.len() > NAME_CHARS_MAX {
        return None;
    }
    let length = name.len();
    let name = String::from_iter(name);
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&name, &String::from_iter(candidate.chars().map(normalized))), candidate))
        .filter(|&(distance, candidate)| distance <= edit_distance_max(length.min(candidate.len())))
        .min_by_key(|&(distance, _)| distance)
}

/// A third of the letters may be wrong, and always one.
fn edit_distance_max(chars: usize) -> usize {
    (chars / 3).max(1)
}

/// `Spin-Us` and `spin_us` are the same to a person.
fn normalized(c: char) -> char {
    if c == '-' { '_' } else { c.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_each_kind_of_edit_once() {
        assert_eq!(nearest_with_distance("spin", ["spin"]), Some((0, "spin")));
        for other in ["spinn", "sin", "spun", "psin"] {
            assert_eq!(nearest_with_distance("spin", [other]), Some((1, other)));
        }
        assert_eq!(nearest_with_distance("sitting", ["kitten"]), None, "three edits of six letters");
    }

    #[test]
    fn nearest_prefers_the_smallest_distance_and_rejects_distant_names() {
        assert_eq!(nearest("adaptve", ["adaptive", "spin", "sleep"]), Some("adaptive"));
        assert_eq!(nearest("Spin-US", ["spin_us", "mode"]), Some("spin_us"));
        assert_eq!(nearest("busy", ["adaptive", "spin", "sleep"]), None);
        assert_eq!(nearest("", ["a"]), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), ["x"]), None);
    }
}
