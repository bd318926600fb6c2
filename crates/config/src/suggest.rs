//! "did you mean": the nearest known name to one that is not known.

/// Longer names get no suggestion: nobody misspells that much, and the distance costs the product of both lengths.
const NAME_CHARS_MAX: usize = 64;

/// The candidate with the smallest edit distance from `name`, if it is near enough to be what was meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_with_distance(name, candidates).map(|(_, candidate)| candidate)
}

/// As [`nearest`], with the distance.
pub(super) fn nearest_with_distance<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<(usize, &'a str)> {
    let name: Vec<char> = name.chars().take(NAME_CHARS_MAX + 1).map(normalized).collect();
    if name.is_empty() || name.len() > NAME_CHARS_MAX {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, &candidate.chars().map(normalized).collect::<Vec<_>>()), candidate))
        .filter(|&(distance, candidate)| distance <= edit_distance_max(name.len().min(candidate.len())))
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

/// Letters put in, left out, replaced or swapped with the next one (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let mut best = (above[j] + usize::from(from != to)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit_distance(a: &str, b: &str) -> usize {
        distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
    }

    #[test]
    fn distance_counts_each_kind_of_edit_once() {
        assert_eq!(edit_distance("spin", "spin"), 0);
        assert_eq!(edit_distance("spin", "spinn"), 1);
        assert_eq!(edit_distance("spin", "sin"), 1);
        assert_eq!(edit_distance("spin", "spun"), 1);
        assert_eq!(edit_distance("spin", "psin"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
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
