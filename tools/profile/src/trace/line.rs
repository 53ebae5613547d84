//! Parses one line of strace's output. Pure: it parses the text, and does not interpret it. The
//! text is untrusted: every index is checked, and a line that is not understood is `Foreign`, never
//! an error.
//!
//! ```text
//! 18212 1503501245.079960 openat(AT_FDCWD</home/u>, "x", O_RDONLY) = 3</home/u/x> <0.000021>
//! pid   time              name   arguments                           result       time duration_us
//! ```

/// Calls have at most six arguments; further ones are not stored.
const ARGUMENTS_MAX: usize = 8;

/// One parsed line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// Absent in the files of `strace -ff`, which have the process id in their name.
    pub pid: Option<u32>,
    pub time: Time,
    pub kind: LineKind<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Time {
    /// A line without a time.
    None,
    /// `-ttt`: microseconds since 1970.
    Epoch(u64),
    /// `-t`, `-tt`: microseconds since midnight.
    Clock(u64),
    /// `-r`: microseconds since the previous line.
    Relative(u64),
}

#[derive(Debug, Clone, PartialEq)]
pub enum LineKind<'a> {
    /// `name(arguments) = result`
    Call { name: &'a [u8], text: &'a [u8] },
    /// `name(arguments <unfinished ...>`; the text is the part before the remark.
    Unfinished { name: &'a [u8], text: &'a [u8] },
    /// `<... name resumed>rest) = result`
    Resumed { name: &'a [u8], rest: &'a [u8] },
    /// The process ended or was killed.
    Exited,
    /// The thread with this id executed a program, and from now on has the id of its process.
    Superseded(u32),
    /// A signal, or a remark of the tracer.
    Remark,
    /// A line that begins like a call and ends too early.
    Truncated,
    /// A line that strace does not write.
    Foreign,
}

/// Parses a line without its newline.
pub fn parse_line(text: &[u8]) -> Line<'_> {
    // A line of `-k`: the stack of the previous call.
    if text.starts_with(b" > ") {
        return Line { pid: None, time: Time::None, kind: LineKind::Remark };
    }
    let (pid, rest) = pid(text);
    let (time, rest) = time(rest);
    let (time, kind) = match kind(skip_counters(rest)) {
        // A line that strace does not write has no time of the trace.
        LineKind::Foreign => (Time::None, LineKind::Foreign),
        kind => (time, kind),
    };
    Line { pid, time, kind }
}

/// Returns only the time of a line, comparable within one trace; `None` if it has no absolute time.
pub fn time_of(text: &[u8]) -> Option<u64> {
    match parse_line(text).time {
        Time::Epoch(micros) | Time::Clock(micros) => Some(micros),
        Time::None | Time::Relative(_) => None,
    }
}

/// Returns the part of a line before a remark of the tracer about a new process; the next line has
/// the rest. Without `-o`, the remark is inside the line of the call that created the process.
pub fn before_remark(text: &[u8]) -> Option<&[u8]> {
    const REMARK: &[u8] = b"strace: Process ";
    let trimmed = text.trim_ascii_end().strip_suffix(b" attached")?;
    let number = trimmed.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let before = trimmed[..trimmed.len() - number].strip_suffix(REMARK)?;
    (number > 0 && !before.is_empty()).then_some(before)
}

/// Returns whether this may be the rest of a line that a remark split: it may begin with any
/// argument.
pub fn is_rest(text: &[u8]) -> bool {
    !text.starts_with(b"[pid ") && !text.starts_with(b"+++ ")
}

/// Returns whether the whole line is a remark.
pub fn is_remark(text: &[u8]) -> bool {
    text.starts_with(b"strace: ")
}

/// Returns whether a line begins with a process id.
pub fn has_pid(text: &[u8]) -> bool {
    pid(text).0.is_some()
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|b| matches!(b, b' ' | b'\t')).count()..]
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// Parses a number; a larger one than u64::MAX saturates.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        Some(sum.saturating_mul(10).saturating_add(digit))
    })
}

/// The maximum process id of Linux: a larger number is a time.
const PID_MAX: u64 = 1 << 22;

/// Parses `1234 `, `1234<comm> ` or `[pid  1234] `.
fn pid(text: &[u8]) -> (Option<u32>, &[u8]) {
    let text = skip_spaces(text);
    let bracket = text.strip_prefix(b"[pid ").map(skip_spaces);
    let begin = bracket.unwrap_or(text);
    let length = digits(begin);
    let Some(pid) = number(&begin[..length]).filter(|n| *n <= PID_MAX).map(|n| n as u32) else {
        return (None, text);
    };
    let mut rest = &begin[length..];
    if let Some(comm) = rest.strip_prefix(b"<") {
        // A `>` in the name of a program is escaped.
        let Some(end) = comm.iter().position(|b| *b == b'>') else { return (None, text) };
        rest = &comm[end + 1..];
    }
    // `--secontext`
    if let Some(context) = rest.strip_prefix(b" [")
        && let Some(end) = context.iter().position(|b| matches!(b, b']' | b'(' | b'"'))
        && context[end] == b']'
        && context[..end].contains(&b':')
    {
        rest = &context[end + 1..];
    }
    if bracket.is_some() {
        return match rest.strip_prefix(b"]") {
            Some(rest) => (Some(pid), skip_spaces(rest)),
            None => (None, text),
        };
    }
    match rest.first() {
        Some(b' ' | b'\t') => (Some(pid), skip_spaces(rest)),
        _ => (None, text),
    }
}

/// Skips `(+     0.000021) ` of `-r` with another time, `[  59] ` of `-n`, and
/// `[00007f7ad89b6ad7] ` of `-i`.
fn skip_counters(text: &[u8]) -> &[u8] {
    let mut rest = text;
    if let Some(relative) = rest.strip_prefix(b"(+") {
        let length = relative.iter().take_while(|b| b.is_ascii_digit() || matches!(b, b' ' | b'.')).count();
        match relative[length..].strip_prefix(b")") {
            Some(after) => rest = skip_spaces(after),
            None => return text,
        }
    }
    for _ in 0..2 {
        let Some(inner) = rest.strip_prefix(b"[") else { break };
        let length = inner.iter().take_while(|b| b.is_ascii_hexdigit() || matches!(b, b' ' | b'?')).count();
        let Some(after) = inner[length..].strip_prefix(b"] ") else { break };
        rest = skip_spaces(after);
    }
    rest
}

/// Parses a fraction as microseconds: at most six digits count; missing ones are zero.
fn fraction(text: &[u8]) -> (u64, &[u8]) {
    let length = digits(text);
    let kept = &text[..length.min(6)];
    let value = number(kept).unwrap_or(0) * 10u64.pow(6 - kept.len() as u32);
    (value, &text[length..])
}

/// A smaller number of seconds is not a date, but the time since the previous line.
const EPOCH_MIN_S: u64 = 100_000_000;
/// The year 5138: a larger number is not a time.
const EPOCH_MAX_S: u64 = 100_000_000_000;

fn time(text: &[u8]) -> (Time, &[u8]) {
    let none = (Time::None, text);
    let length = digits(text);
    let Some(first) = number(&text[..length]).filter(|n| *n < EPOCH_MAX_S) else { return none };
    let rest = &text[length..];
    if let Some(rest) = rest.strip_prefix(b".") {
        let (micros, rest) = fraction(rest);
        let value = first * 1_000_000 + micros;
        let time = if first < EPOCH_MIN_S { Time::Relative(value) } else { Time::Epoch(value) };
        return (time, skip_spaces(rest));
    }
    // 12:34:56.123456
    let two = |text: &[u8]| (text.first() == Some(&b':')).then(|| number(text.get(1..3)?)).flatten();
    if let (Some(minutes), Some(seconds)) = (two(rest), rest.get(3..).and_then(two))
        && first < 24
    {
        let rest = &rest[6..];
        let (micros, rest) = rest.strip_prefix(b".").map_or((0, rest), fraction);
        return (
            Time::Clock(((first * 60 + minutes) * 60 + seconds) * 1_000_000 + micros),
            skip_spaces(rest),
        );
    }
    // Whole seconds: `strace --absolute-timestamps=unix`.
    match rest.first() {
        Some(b' ') if first >= EPOCH_MIN_S => (Time::Epoch(first * 1_000_000), skip_spaces(rest)),
        _ => none,
    }
}

fn kind(text: &[u8]) -> LineKind<'_> {
    if text.starts_with(b"+++ ") {
        if let Some(rest) = text.strip_prefix(b"+++ superseded by execve in pid ") {
            return number(&rest[..digits(rest)])
                .filter(|n| *n <= PID_MAX)
                .map_or(LineKind::Exited, |n| LineKind::Superseded(n as u32));
        }
        let ended = [b"+++ exited".as_slice(), b"+++ killed", b"+++ superseded"];
        return if ended.iter().any(|e| text.starts_with(e)) { LineKind::Exited } else { LineKind::Remark };
    }
    if text.starts_with(b"--- ") || text.starts_with(b"strace: ") {
        return LineKind::Remark;
    }
    if let Some(rest) = text.strip_prefix(b"<... ") {
        let name = &rest[..identifier(rest)];
        return match rest[name.len()..].strip_prefix(b" resumed>") {
            Some(rest) if !name.is_empty() && (is_known_call(name) || has_result(rest)) => {
                LineKind::Resumed { name, rest }
            }
            _ => LineKind::Truncated,
        };
    }
    let name = &text[..identifier(text)];
    if name.is_empty() {
        return LineKind::Foreign;
    }
    if text.get(name.len()) != Some(&b'(') {
        // `????(`, or the beginning of a truncated call. A single other word may be anything.
        return if name.len() == text.len() && is_known_call(name) {
            LineKind::Truncated
        } else {
            LineKind::Foreign
        };
    }
    if let Some(begun) = unfinished(text.trim_ascii_end()) {
        return LineKind::Unfinished { name, text: begun.trim_ascii_end() };
    }
    // For calls that are counted, `parse_call` checks later whether the line is complete.
    if is_known_call(name) || has_result(text) { LineKind::Call { name, text } } else { LineKind::Truncated }
}

/// Parses `<unfinished ...>`, or `<pid changed to 12 ...>` of a thread that executes a program.
fn unfinished(text: &[u8]) -> Option<&[u8]> {
    let inner = text.strip_suffix(b" ...>")?;
    if let Some(begun) = inner.strip_suffix(b"<unfinished") {
        return Some(begun);
    }
    let number = inner.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    inner[..inner.len() - number].strip_suffix(b"<pid changed to ")
}

fn identifier(text: &[u8]) -> usize {
    // A call that the tracer could not read.
    if text.starts_with(b"????") {
        return 4;
    }
    let first = text.first().is_some_and(|b| b.is_ascii_lowercase() || *b == b'_');
    if !first {
        return 0;
    }
    text.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count()
}

fn is_known_call(name: &[u8]) -> bool {
    crate::trace::calls::call_kind(name).is_some()
}

/// Returns whether a result seems to follow the arguments; used for calls that are not parsed.
fn has_result(text: &[u8]) -> bool {
    let Some(at) = find_last(text, b" = ") else { return false };
    text[..at].trim_ascii_end().ends_with(b")") && at + 3 < text.len()
}

fn find_last(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).rposition(|window| window == what)
}

/// The arguments and the result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call<'a> {
    arguments: [&'a [u8]; ARGUMENTS_MAX],
    count: usize,
    pub result: ParsedResult<'a>,
    /// Microseconds, with `-T`.
    pub duration_us: Option<u64>,
    /// The id of a new process in the tracer's PID namespace, if its id in its parent's namespace
    /// is another one.
    pub tracer_pid: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ParsedResult<'a> {
    /// The value, and with `-y` the file of a returned descriptor.
    Value(i64, Option<&'a [u8]>),
    /// The name of the error.
    Failed(&'a [u8]),
    /// The call did not return, or the log does not have its result.
    Unknown,
}

impl<'a> Call<'a> {
    pub fn argument(&self, index: usize) -> Option<&'a [u8]> {
        self.arguments[..self.count].get(index).copied()
    }

    /// Returns a descriptor with the annotation of `-y`: `3</path>`, `AT_FDCWD</home/u>`.
    pub fn descriptor(&self, index: usize) -> Option<Descriptor<'a>> {
        descriptor(self.argument(index)?)
    }

    pub fn number(&self, index: usize) -> Option<i64> {
        signed(self.argument(index)?)
    }

    /// Returns whether one of the flags `A|B|C` is `flag`.
    pub fn has_flag(&self, index: usize, flag: &[u8]) -> bool {
        self.argument(index).is_some_and(|text| has_flag(text, flag))
    }
}

impl Call<'_> {
    /// Returns whether any argument other than a string has one of these flags.
    pub fn has_any_flag(&self, flags: &[&[u8]]) -> bool {
        let arguments = self.arguments[..self.count].iter().filter(|a| !a.starts_with(b"\""));
        arguments.into_iter().any(|argument| flags.iter().any(|flag| has_flag(argument, flag)))
    }
}

/// Returns whether `flag` is among names joined by `|`, also within a structure
/// (`{flags=A|B, ...}`).
pub fn has_flag(text: &[u8], flag: &[u8]) -> bool {
    text.split(|b| matches!(b, b'|' | b'=' | b',' | b'{' | b'}' | b' ')).any(|word| word == flag)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Descriptor<'a> {
    /// `None` is AT_FDCWD.
    pub number: Option<i32>,
    pub annotation: Option<&'a [u8]>,
}

fn descriptor(text: &[u8]) -> Option<Descriptor<'_>> {
    let length = text.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')).count();
    let (value, rest) = text.split_at(length);
    let annotation = rest.strip_prefix(b"<").and_then(|inner| Some(&inner[..annotation_end(inner)?]));
    let number = match value {
        b"AT_FDCWD" => None,
        _ => match signed(value)? {
            // The output of `-X raw`.
            AT_FDCWD | AT_FDCWD_UNSIGNED => None,
            number => Some(i32::try_from(number).ok()?),
        },
    };
    Some(Descriptor { number, annotation })
}

const AT_FDCWD: i64 = -100;
const AT_FDCWD_UNSIGNED: i64 = 0xffff_ff9c;

/// Returns the position of the `>` that ends an annotation of `-y`. In a path, `<` and `>` are
/// escaped, so the unescaped ones form pairs (`/dev/null<char 1:3>`). In a socket's annotation,
/// `->` separates the two ends (`UNIX:[1->2,"/run/x"]`).
fn annotation_end(text: &[u8]) -> Option<usize> {
    let is_path = text.starts_with(b"/") || text.starts_with(b"\\x2f");
    let (mut at, mut depth) = (0, 0usize);
    loop {
        match *text.get(at)? {
            b'<' => depth += 1,
            b'>' if !is_path && at > 0 && text[at - 1] == b'-' => {}
            b'>' if depth == 0 => return Some(at),
            b'>' => depth -= 1,
            b'"' if !is_path => at = closing_quote(text, at)?,
            _ => {}
        }
        at += 1;
    }
}

fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(rest) => number(rest).and_then(|n| i64::try_from(n).ok()).map(|n| -n),
        None => match text.strip_prefix(b"0x") {
            Some(hex) => i64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok().or(Some(i64::MAX)),
            None => number(text).and_then(|n| i64::try_from(n).ok()),
        },
    }
}

/// Parses `name(arguments) = result <time>`; `None` if the text has another form.
pub fn parse_call<'a>(name: &[u8], text: &'a [u8]) -> Option<Call<'a>> {
    let after_name = text.get(name.len() + 1..)?;
    let (arguments, count, end) = arguments(after_name);
    let rest = skip_spaces(&after_name[end? + 1..]).strip_prefix(b"= ")?;
    let (result, rest) = outcome(rest)?;
    Some(Call { arguments, count, result, duration_us: duration_us(rest), tracer_pid: tracer_pid(rest) })
}

/// Does the same as `parse_call`, for a call that has not ended: `name(arguments`. Its result is
/// unknown.
pub fn parse_unfinished<'a>(name: &[u8], text: &'a [u8]) -> Option<Call<'a>> {
    let (arguments, count, _) = arguments(text.get(name.len() + 1..)?);
    Some(Call { arguments, count, result: ParsedResult::Unknown, duration_us: None, tracer_pid: None })
}

type Arguments<'a> = ([&'a [u8]; ARGUMENTS_MAX], usize, Option<usize>);

/// Splits the text at the commas between arguments, up to the closing parenthesis, whose position
/// is returned if there is one.
fn arguments(text: &[u8]) -> Arguments<'_> {
    let mut arguments: [&[u8]; ARGUMENTS_MAX] = [b""; ARGUMENTS_MAX];
    let mut count = 0;
    let (mut at, mut begin, mut depth) = (0, 0, 0usize);
    let mut end = None;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = closing_quote(text, at).unwrap_or(text.len()),
            b'<' if is_descriptor(&text[begin..at]) => {
                at = annotation_end(&text[at + 1..]).map_or(text.len(), |length| at + 1 + length);
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                end = Some(at);
                break;
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                push_argument(&mut arguments, &mut count, &text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    push_argument(&mut arguments, &mut count, &text[begin.min(text.len())..end.unwrap_or(text.len())]);
    (arguments, count, end)
}

fn push_argument<'a>(arguments: &mut [&'a [u8]; ARGUMENTS_MAX], count: &mut usize, argument: &'a [u8]) {
    let argument = argument.trim_ascii();
    if !argument.is_empty() && *count < ARGUMENTS_MAX {
        arguments[*count] = argument;
        *count += 1;
    }
}

/// The maximum length of a descriptor, which limits the search backwards.
const LONGEST_DESCRIPTOR: usize = 16;

/// Returns whether `<` begins an annotation of `-y`: only after a number or AT_FDCWD.
fn is_descriptor(before: &[u8]) -> bool {
    let word = &before[before.len().saturating_sub(LONGEST_DESCRIPTOR)..];
    let word = word.rsplit(|b| matches!(b, b'[' | b'{' | b'=' | b' ')).next().unwrap_or(word);
    word == b"AT_FDCWD" || (!word.is_empty() && word.iter().all(u8::is_ascii_digit))
}

/// Returns the position of the closing quote.
fn closing_quote(text: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match *text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn outcome(text: &[u8]) -> Option<(ParsedResult<'_>, &[u8])> {
    if let Some(rest) = text.strip_prefix(b"?") {
        return Some((ParsedResult::Unknown, rest));
    }
    let length = text.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'-').count();
    let value = signed(&text[..length])?;
    let rest = &text[length..];
    if let Some(annotated) = rest.strip_prefix(b"<") {
        let end = annotation_end(annotated)?;
        return Some((ParsedResult::Value(value, Some(&annotated[..end])), &annotated[end + 1..]));
    }
    if value == -1
        && let Some(error) = rest.strip_prefix(b" E")
    {
        let length = error.iter().take_while(|b| b.is_ascii_alphanumeric()).count();
        let name = &rest[1..length + 2];
        return Some((ParsedResult::Failed(name), &error[length..]));
    }
    Some((ParsedResult::Value(value, None), rest))
}

/// Parses `2 /* 28917 in strace's PID NS */`.
fn tracer_pid(text: &[u8]) -> Option<u32> {
    let inner = text.strip_prefix(b" /* ")?;
    let length = digits(inner);
    inner[length..].starts_with(b" in strace's PID NS").then_some(())?;
    number(&inner[..length]).filter(|n| *n <= PID_MAX).map(|n| n as u32)
}

/// Parses ` <0.000021>` at the end of the line.
fn duration_us(text: &[u8]) -> Option<u64> {
    let inner = text.trim_ascii_end().strip_suffix(b">")?;
    let begin = inner.iter().rposition(|b| *b == b'<')? + 1;
    let (seconds, rest) = inner[begin..].split_at(digits(&inner[begin..]));
    let (micros, rest) = fraction(rest.strip_prefix(b".")?);
    (rest.is_empty()).then_some(number(seconds)?.checked_mul(1_000_000)?.checked_add(micros)?)
}

/// Returns the bytes of a quoted string, and whether strace printed all of it; `None` if the
/// argument is not a string.
pub fn string(argument: &[u8]) -> Option<(Vec<u8>, bool)> {
    let inner = argument.strip_prefix(b"\"")?;
    let close = closing_quote(argument, 0)? - 1;
    let complete = !inner[close + 1..].starts_with(b"...");
    Some((unescape(&inner[..close]), complete))
}

/// Decodes the C escapes that strace uses in strings and annotations.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let Some((&kind, tail)) = rest.split_first() else { break };
        rest = tail;
        match kind {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            b'v' => bytes.push(0x0b),
            b'f' => bytes.push(0x0c),
            b'x' => {
                let length = rest.iter().take(2).take_while(|b| b.is_ascii_hexdigit()).count();
                let text = std::str::from_utf8(&rest[..length]).unwrap_or_default();
                bytes.extend(u8::from_str_radix(text, 16).ok());
                rest = &rest[length..];
            }
            b'0'..=b'7' => {
                let length = rest.iter().take(2).take_while(|b| matches!(b, b'0'..=b'7')).count();
                let octal =
                    rest[..length].iter().fold(u32::from(kind - b'0'), |v, b| v * 8 + u32::from(b - b'0'));
                bytes.push(octal as u8);
                rest = &rest[length..];
            }
            other => bytes.push(other),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_call(text: &str) -> (Vec<&[u8]>, ParsedResult<'_>, Option<u64>) {
        let LineKind::Call { name, text } = parse_line(text.as_bytes()).kind else { panic!("{text}") };
        let call = parse_call(name, text).expect("a call");
        ((0..call.count).map(|i| call.argument(i).unwrap()).collect(), call.result, call.duration_us)
    }

    #[test]
    fn the_line_that_the_paper_prints_is_parsed() {
        let text =
            r#"18212 1503501245.079960 read(3</lib64/libpthread-2.12.so>, "\x7f\x45\x4c"... , 832) = 832"#;
        let read = parse_line(text.as_bytes());
        assert_eq!((read.pid, read.time), (Some(18212), Time::Epoch(1_503_501_245_079_960)));
        let (arguments, result, duration_us) = parsed_call(text);
        assert_eq!(arguments, [b"3</lib64/libpthread-2.12.so>".as_slice(), br#""\x7f\x45\x4c"..."#, b"832"]);
        assert_eq!((result, duration_us), (ParsedResult::Value(832, None), None));
    }

    #[test]
    fn times_and_pids_of_every_option_are_parsed() {
        for (text, pid, time) in [
            ("close(3) = 0", None, Time::None),
            ("7 close(3) = 0", Some(7), Time::None),
            ("7<bash> close(3) = 0", Some(7), Time::None),
            ("[pid  12] close(3) = 0", Some(12), Time::None),
            ("[pid 12] 10:20:30.5 close(3) = 0", Some(12), Time::Clock(37_230_500_000)),
            ("10:20:30 close(3) = 0", None, Time::Clock(37_230_000_000)),
            ("12 1700000000.000001 close(3) = 0", Some(12), Time::Epoch(1_700_000_000_000_001)),
            ("1700000000.000001 close(3) = 0", None, Time::Epoch(1_700_000_000_000_001)),
            ("     0.000045 close(3) = 0", None, Time::Relative(45)),
            ("12      0.000045 close(3) = 0", Some(12), Time::Relative(45)),
        ] {
            let read = parse_line(text.as_bytes());
            assert_eq!((read.pid, read.time), (pid, time), "{text}");
            assert!(matches!(read.kind, LineKind::Call { name: b"close", .. }), "{text}");
        }
    }

    #[test]
    fn arguments_are_split_at_top_level_commas() {
        let text = r#"1 openat(AT_FDCWD</a, b>, "x, \"y\") = 3", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file) <0.000021>"#;
        let (arguments, result, duration_us) = parsed_call(text);
        assert_eq!(arguments, [b"AT_FDCWD</a, b>".as_slice(), br#""x, \"y\") = 3""#, b"O_RDONLY|O_CLOEXEC"]);
        assert_eq!((result, duration_us), (ParsedResult::Failed(b"ENOENT"), Some(21)));
        let text = r#"1 clone3({flags=CLONE_VM|CLONE_FILES, exit_signal=0} => {parent_tid=[9]}, 88) = 9"#;
        let (arguments, result, _) = parsed_call(text);
        assert_eq!((arguments.len(), result), (2, ParsedResult::Value(9, None)));
        assert!(has_flag(arguments[0], b"CLONE_FILES") && !has_flag(arguments[0], b"CLONE_FS"));
    }

    #[test]
    fn descriptors_are_parsed_with_their_annotations() {
        let LineKind::Call { name, text } = parse_line(br#"1 dup(3</x\76y>) = 4</x\76y>"#).kind else {
            panic!()
        };
        let call = parse_call(name, text).unwrap();
        let descriptor = call.descriptor(0).unwrap();
        assert_eq!((descriptor.number, descriptor.annotation), (Some(3), Some(br"/x\76y".as_slice())));
        assert_eq!(call.result, ParsedResult::Value(4, Some(br"/x\76y")));
        assert_eq!(unescape(br"/x\76y"), b"/x>y");
    }

    #[test]
    fn strings_are_unescaped() {
        assert_eq!(string(br#""a\tb\"\\\1234\xff""#), Some((b"a\tb\"\\S4\xff".to_vec(), true)));
        assert_eq!(string(br#""cut"..."#), Some((b"cut".to_vec(), false)));
        assert_eq!(string(b"NULL"), None);
        assert_eq!(string(b"\"open"), None);
    }

    #[test]
    fn lines_that_are_not_calls_are_classified() {
        for (text, what) in [
            ("1 +++ exited with 0 +++", LineKind::Exited),
            ("1 +++ killed by SIGKILL +++", LineKind::Exited),
            ("1 --- SIGCHLD {si_signo=SIGCHLD} ---", LineKind::Remark),
            ("strace: Process 12 attached", LineKind::Remark),
            ("1 futex(0x7f, FUTEX_WAIT_PRI", LineKind::Truncated),
            ("1 opena", LineKind::Foreign),
            ("1 openat", LineKind::Truncated),
            ("1 <... openat resumed", LineKind::Truncated),
            ("", LineKind::Foreign),
            ("hello, world", LineKind::Foreign),
            ("\u{1f600}", LineKind::Foreign),
            ("#!/bin/sh", LineKind::Foreign),
            ("2026-01-01 INFO open(x) done", LineKind::Foreign),
            ("1 read(3,  <unfinished ...>", LineKind::Unfinished { name: b"read", text: b"read(3," }),
            ("1 <... read resumed>\"\", 5) = 0", LineKind::Resumed { name: b"read", rest: b"\"\", 5) = 0" }),
        ] {
            assert_eq!(parse_line(text.as_bytes()).kind, what, "{text}");
        }
    }

    #[test]
    fn a_truncated_call_is_rejected() {
        for text in [
            "openat(AT_FDCWD, \"/etc/ld.so",
            "openat(AT_FDCWD, \"/etc\", O_RDONLY) =",
            "openat(3</a, \"x\") = 3",
        ] {
            assert_eq!(parse_call(b"openat", text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_line_truncated_anywhere_does_not_panic() {
        let text =
            br#"18 1503501245.07 openat(AT_FDCWD</a>, "/l\"ib", O_RDONLY|O_CLOEXEC) = 3</l\76> <0.000021>"#;
        for end in 0..text.len() {
            if let LineKind::Call { name, text } | LineKind::Unfinished { name, text } =
                parse_line(&text[..end]).kind
            {
                let _ = parse_call(name, text);
                let _ = parse_unfinished(name, text);
            }
            let _ = parse_line(&text[end..]);
        }
    }
}
