package rulefile

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/token"

	"gatehouse/ratelimit/internal/limits"
)

// The YAML library describes an error in terms of YAML's grammar, and often names a place after the error. This file
// recognizes the usual errors in rule files and describes them in plain words. It only looks at texts that have been
// refused already, so it does not decide what is valid.

// inPlainWords returns a plain description of an error that the library found, if the text has one of the usual errors;
// otherwise it returns the library's error.
func inPlainWords(text string, tokens token.Tokens, bad *syntax) *syntax {
	reason := strings.TrimPrefix(bad.message, notYAML)
	quote := "\""
	if strings.Contains(reason, "single-quoted") {
		quote = "'"
	}
	switch {
	case strings.HasPrefix(reason, "could not find end character"):
		return &syntax{bad.pos, "the text that begins here has no closing " + quote}
	case strings.Contains(reason, "tab character") || strings.Contains(reason, "character '\t'"):
		line, _, _ := strings.Cut(text[lineStart(text, int(bad.pos.Line)):], "\n")
		at := utf8.RuneCountInString(line[:max(strings.IndexByte(line, '\t'), 0)])
		return &syntax{limits.Pos{Line: bad.pos.Line, Column: int32(at + 1)},
			"a tab stands here; YAML is indented with blanks only, write two for each level"}
	}
	if before, _, template := strings.Cut(text, "{{"); template {
		return &syntax{limits.Pos{Line: int32(strings.Count(before, "\n") + 1), Column: int32(utf8.RuneCountInString(
			before[strings.LastIndexByte(before, '\n')+1:]) + 1)},
			"this is a template, not a file of rules: {{ stands here; check what it makes, such as the output of helm template"}
	}
	if at := strings.Index("\n"+text, "\n<<<<<<< "); at >= 0 {
		return &syntax{limits.Pos{Line: int32(strings.Count(text[:at], "\n") + 1), Column: 1},
			"a conflict of two versions begins here, as git marks it; keep one of them, and no line of marks"}
	}
	b := bracketsOf(tokens)
	if slip := b.slip(); slip != nil {
		return slip
	}
	s := layout{inFlow: b.lines}
	number := int32(0)
	for line := range strings.SplitSeq(text, "\n") {
		if number++; number > bad.pos.Line+1 {
			break
		}
		if column, slip := s.line(number, line); slip != "" {
			return &syntax{limits.Pos{Line: number, Column: int32(column)}, slip}
		}
	}
	switch {
	case strings.HasPrefix(reason, "mapping value is not allowed"):
		return &syntax{bad.pos, "a second colon stands in this line; put a text with a colon and a blank in quotes, " +
			"and each key in a line of its own"}
	case strings.HasSuffix(reason, "is a reserved character"):
		return &syntax{bad.pos, "no text begins with " + strings.TrimSuffix(reason, " is a reserved character") +
			"; put it in quotes"}
	}
	return bad
}

// lineStart returns the offset at which a line begins. Lines are numbered from 1.
func lineStart(text string, number int) (at int) {
	for ; number > 1; number-- {
		next := strings.IndexByte(text[at:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	return at
}

// brackets are the brackets and braces in a text that belong to flow style, not to scalars.
type brackets struct {
	open   []*token.Token // the brackets that are not closed
	closer *token.Token   // a closing bracket of the wrong kind for the last open bracket
	lines  map[int]bool   // numbers of the lines that begin inside brackets
}

func bracketsOf(tokens token.Tokens) brackets {
	b := brackets{lines: map[int]bool{}}
	line := 0
	for _, t := range tokens {
		if t.Position == nil {
			continue
		}
		if t.Position.Line != line {
			line = t.Position.Line
			b.lines[line] = len(b.open) > 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			b.open = append(b.open, t)
		case token.SequenceEndType, token.MappingEndType:
			if len(b.open) == 0 {
				return b
			}
			if closing(b.open[len(b.open)-1]) != t.Value {
				b.closer = t
				return b
			}
			b.open = b.open[:len(b.open)-1]
		}
	}
	return b
}

func closing(opened *token.Token) string {
	if opened.Type == token.SequenceStartType {
		return "]"
	}
	return "}"
}

// slip returns an error for an unclosed bracket, with the position of the opening bracket; nil if there is none.
func (b brackets) slip() *syntax {
	if len(b.open) == 0 {
		return nil
	}
	opened := b.open[len(b.open)-1]
	message := fmt.Sprintf("the %s here is never closed; write %s where it ends", opened.Value, closing(opened))
	if b.closer != nil {
		at := positionOf(b.closer)
		message = fmt.Sprintf("the %s here is not closed before the %s at line %d, column %d; write %s", opened.Value,
			b.closer.Value, at.Line, at.Column, closing(opened))
	}
	return &syntax{positionOf(opened), message}
}

// layout checks the indentation of a text, line by line. It knows the columns in which the next line may begin.
type layout struct {
	inFlow   map[int]bool
	open     []level
	awaiting bool // the previous line ends in a colon or a dash, so that its value may follow
	scalar   int  // column of the key whose block scalar the next line may continue; 0 for none
}

// level is a map whose keys, or a list whose dashes, begin in the given column.
type level struct {
	column int
	list   bool
}

// keyLine matches a line in block style: its indentation, its dashes, its key, and the text after the key's colon.
var keyLine = regexp.MustCompile(`^( *)((?:- +)*)(?:["']?([^\s:#'"{\[&*!|>-][^\s:"']*)["']?:(?:[ \t]+(.*))?$|-$|(.*))`)

// line checks the next line. slip describes an error, and column is where the error is; if there is no error, slip is
// empty.
func (l *layout) line(number int32, line string) (column int, slip string) {
	line = strings.TrimRight(line, " \t\r")
	m := keyLine.FindStringSubmatch(line)
	switch {
	case m == nil || l.inFlow[int(number)] || strings.TrimSpace(line) == "" || strings.HasPrefix(m[5], "#"):
		return 0, ""
	case l.scalar > 0 && len(m[1]) >= l.scalar:
		return 0, ""
	}
	l.scalar = 0
	key, value, rest := m[3], m[4], m[5]
	column = len(m[1]) + 1
	for i, c := range m[2] {
		if c == '-' {
			if slip := l.place(column+i, true, strings.HasPrefix(line[len(m[1]+m[2]):], "key:")); slip != "" {
				return column + i, slip
			}
			l.awaiting = true
		}
	}
	column += len(m[2])
	switch bare := key == "" && rest == ""; {
	case bare: // the line ends in a dash
		slip = l.place(column, true, false)
		l.awaiting = true
	case key != "":
		slip = l.place(column, false, false)
		l.awaiting = value == "" || strings.ContainsAny(value[:1], "#&!")
		if value != "" && strings.ContainsAny(value[:1], "|>") {
			l.scalar = column
		}
	default:
		slip = unspaced(rest)
		l.awaiting = rest[0] == '&'
	}
	return column, slip
}

// place begins a map or list in a column, or continues the one that is open there. slip describes an error.
func (l *layout) place(column int, list, entry bool) (slip string) {
	before := slices.Clone(l.open)
	for len(l.open) > 0 {
		last := l.open[len(l.open)-1]
		under := len(l.open) > 1 && l.open[len(l.open)-2] == level{column, false}
		if last.column < column || last.column == column && (last.list == list || !under) {
			break
		}
		l.open = l.open[:len(l.open)-1]
	}
	closed := len(l.open) < len(before)
	last := level{}
	if len(l.open) > 0 {
		last = l.open[len(l.open)-1]
	}
	switch {
	case last == level{column, list}:
		return ""
	case !closed && (l.awaiting || len(before) == 0) && (last.column < column || list):
		l.open = append(l.open, level{column, list})
		return ""
	case list && !closed && entry:
		return "a list of descriptors begins here without descriptors: before it; write descriptors: in the line above"
	case list && !closed:
		return "a list begins here that belongs to no key; end the line above with a key and a colon"
	}
	return misplaced(column, list, before)
}

// misplaced returns the message about a line that begins in a column where no open map or list of its kind has its
// lines.
func misplaced(column int, list bool, open []level) string {
	left, right := 0, 0
	for _, l := range open {
		switch {
		case l.list != list:
		case l.column < column:
			left = l.column
		case right == 0 && l.column > column:
			right = l.column
		}
	}
	var want []string
	for _, c := range []int{left, right} {
		if c > 0 {
			want = append(want, fmt.Sprint(c-1))
		}
	}
	return fmt.Sprintf("this line is indented by %d, which fits no line above; want %s", column-1,
		limits.OrList(want))
}

// unspaced returns the message about a text that is probably meant as a key and its value, such as key:value without a
// space; empty for any other text.
func unspaced(text string) string {
	key, value, colon := strings.Cut(text, ":")
	word, more, _ := strings.Cut(text, " ")
	switch {
	case colon && slices.Contains(knownKeys, key) && value != "" && value[0] != ' ':
		return fmt.Sprintf("a blank is missing after the colon of %s; write %s: %s", key, key,
			limits.OneLine(strings.TrimSpace(value)))
	case slices.Contains(knownKeys, word) && !colon:
		return fmt.Sprintf("a colon is missing after %s; write %s", word,
			limits.OneLine(strings.TrimSpace(word+": "+strings.TrimLeft(more, "= "))))
	}
	return ""
}

// slipIn returns the end of a message about a text that is in the place of a map.
func slipIn(n *node) string {
	if slip := unspaced(n.text); n.kind == textNode && slip != "" {
		return "; " + slip
	}
	return ""
}
