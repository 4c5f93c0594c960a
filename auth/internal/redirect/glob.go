package redirect

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// These are regular expressions for the texts that a wildcard matches in the different parts of a URL
// (docs/api.md#where-links-and-answers-may-lead). Package regexp takes time proportional to the lengths of pattern and
// target, whatever the pattern is.
const (
	hostLabel = `[A-Za-z0-9-]*`
	hostRun   = `[A-Za-z0-9.-]*`
	digits    = `[0-9]*`
	segment   = `[^./]*` // in a path, * matches neither a dot nor a slash
	anything  = `(?s:.*)`
)

// whole compiles an expression that must match the whole of a text.
func whole(expression string) (*regexp.Regexp, error) {
	return regexp.Compile(`\A` + expression + `\z`)
}

var quotedStars = regexp.MustCompile(`(?:\\\*)+`)

// stars compiles a text in which only * and ** are special. The parameter one is the regular expression for *, and two
// is the regular expression for **.
func stars(text, one, two string) (*regexp.Regexp, error) {
	return whole(quotedStars.ReplaceAllStringFunc(regexp.QuoteMeta(text), func(run string) string {
		if run == `\*` {
			return one
		}
		return two
	}))
}

// compileText compiles the pattern of a path with its query. The special forms in the pattern are * ** [abc] [!abc]
// [a-c] {x} and the backslash; ? is literal.
func compileText(text string) (*regexp.Regexp, error) {
	var b strings.Builder
	braces := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '*':
			run := len(text[i:]) - len(strings.TrimLeft(text[i:], "*"))
			if run == 1 {
				b.WriteString(segment)
			} else {
				b.WriteString(anything)
			}
			i += run - 1
		case '[':
			n, expression, err := class(text[i:])
			if err != nil {
				return nil, err
			}
			i += n - 1
			b.WriteString(expression)
		case '{': // the list of patterns is split at commas, so braces have only one alternative
			braces++
		case '}':
			if braces--; braces < 0 {
				return nil, errors.New("a } closes nothing")
			}
		case '\\':
			if i++; i == len(text) {
				return nil, errors.New("ends in a backslash")
			}
			b.WriteString(regexp.QuoteMeta(text[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(text[i : i+1]))
		}
	}
	if braces > 0 {
		return nil, errors.New("a { is not closed; alternatives are items of their own")
	}
	return whole(b.String())
}

// class reads a class such as [abc] at the beginning of text, and returns its length and its expression. A negated
// class such as [!a] matches neither a dot nor a slash.
func class(text string) (n int, expression string, err error) {
	i := 1
	expression = "["
	if i < len(text) && (text[i] == '!' || text[i] == '^') {
		expression = "[^./"
		i++
	}
	begin := i
	for ; i < len(text) && (text[i] != ']' || i == begin); i++ {
		if text[i] >= 0x80 {
			return 0, "", errors.New("a [ ] may hold ASCII only")
		}
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		from, to := text[i], text[i]
		if i+2 < len(text) && text[i+1] == '-' && text[i+2] != ']' {
			to = text[i+2]
			i += 2
		}
		if from > to || to >= 0x80 {
			return 0, "", fmt.Errorf("a [ ] holds the range %c-%c, which runs backwards or beyond ASCII", from, to)
		}
		expression += fmt.Sprintf(`\x%02x-\x%02x`, from, to)
	}
	if i >= len(text) {
		return 0, "", errors.New("a [ is not closed")
	}
	return i + 1, expression + "]", nil
}
