//! Splits prose into words, without the code in it.

/// A word in lower case and the line it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: usize,
}

/// Returns the words of a text; `None` stands for a mark or a gap across which no phrase reaches. Fenced code blocks and
/// code between back quotes are left out.
pub(super) fn words(text: &str, first_line: usize) -> Vec<Option<Word>> {
    let mut words: Vec<Option<Word>> = Vec::new();
    for (at, line) in without_code(&without_fences(text)).split('\n').enumerate() {
        if line.trim().is_empty() {
            words.push(None);
        }
        let mut rest = line.trim();
        while let Some(first) = rest.chars().next() {
            let len = rest.find(|sign| !is_word(sign)).unwrap_or(rest.len());
            if len > 0 {
                words.push(Some(Word { text: rest[..len].to_lowercase(), line: first_line + at }));
            } else if first != '-' && !first.is_whitespace() {
                words.push(None);
            }
            rest = &rest[len.max(first.len_utf8())..];
        }
    }
    words
}

/// Returns true if some words begin with a phrase.
pub(super) fn begins_with(words: &[Option<Word>], phrase: &[&str]) -> bool {
    let begins = words.get(..phrase.len());
    begins.is_some_and(|words| {
        words.iter().zip(phrase).all(|(word, part)| word.as_ref().is_some_and(|word| word.text == *part))
    })
}

fn is_word(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}

/// The text with empty lines in place of its fenced code blocks.
fn without_fences(text: &str) -> String {
    let mut fence = None;
    let mut kept = Vec::new();
    for line in text.split('\n') {
        let mark = line.trim_start_matches(['>', ' ']).get(..3).filter(|mark| ["```", "~~~"].contains(mark));
        let is_code = mark.is_some() || fence.is_some();
        kept.push(if is_code { "" } else { line });
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => {}
        }
    }
    kept.join("\n")
}

/// The text without what stands between back quotes; its line breaks are kept.
fn without_code(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('`') {
        let after = rest[at..].trim_start_matches('`');
        let quote = &rest[at..rest.len() - after.len()];
        kept += &rest[..at];
        kept.push('`');
        let paragraph = after.find("\n\n").unwrap_or(after.len());
        rest = match after[..paragraph].find(quote) {
            Some(end) => {
                kept.extend(after[..end].chars().filter(|sign| *sign == '\n'));
                after[end..].trim_start_matches('`')
            }
            None => after,
        };
    }
    kept + rest
}
