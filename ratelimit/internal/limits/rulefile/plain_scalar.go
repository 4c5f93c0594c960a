package rulefile

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// scalar reads the value that begins at an offset, and goes to the next line. It fails if the next line would continue
// the value, being indented more than indent. Only a value in flow style ({…} or […]) may extend over several lines.
func (p *plainReader) scalar(at, indent int) *node {
	n := p.lastOfLine(at, 0)
	if !p.eof && p.indent() > indent {
		p.failFor(p.from, "a value that goes on in a further line")
	}
	return n
}

// lastOfLine reads a value that is the last of its line, except for a comment, and goes to the next line.
func (p *plainReader) lastOfLine(at, depth int) *node {
	n, end := p.value(at, depth, false)
	if after := p.skipBlanks(end); after < p.to && (after == end || p.src[after] != '#') {
		p.fail(at)
	}
	p.next()
	return n
}

// key returns the node of a key. colon is the offset of the colon after the key, which keyEnd has found.
func (p *plainReader) key(at, colon int) *node {
	if c := p.src[at]; c == '"' || c == '\'' {
		n, _ := p.quoted(at)
		n.text = p.intern(n.text)
		return n
	}
	text := strings.TrimRight(p.src[at:colon], " \t")
	if strings.HasSuffix(text, "<<") { // leave to the library other texts than << that it takes for a merge key
		p.fail(at)
	}
	n := p.node(textNode, at)
	n.plain, n.text = true, p.intern(text)
	return n
}

// keyEnd returns the offset of the colon after a key that begins at an offset; -1 if no key begins there.
func (p *plainReader) keyEnd(at int, flow bool) int {
	c := p.src[at]
	if c != '"' && c != '\'' {
		_, stop := p.plainScan(at, flow)
		if stop == at || stop == p.to || p.src[stop] != ':' || flow && strings.Contains(p.src[at:stop], ":") {
			return -1
		}
		return stop
	}
	end := p.quoteEnd(at)
	if end < 0 || end == p.to || p.src[end] != ':' {
		return -1
	}
	if !flow && end+1 < p.to && !blank(p.src[end+1]) {
		return -1
	}
	return end
}

// quoted reads a quoted text, which must end on the same line.
func (p *plainReader) quoted(at int) (n *node, end int) {
	if end = p.quoteEnd(at); end < 0 {
		p.fail(at)
	}
	text := p.src[at+1 : end-1]
	switch {
	case p.src[at] == '\'' && strings.Contains(text, "'"):
		text = strings.ReplaceAll(text, "''", "'")
	case p.src[at] == '"' && strings.Contains(text, "\\"):
		var ok bool
		if text, ok = unescape(text); !ok {
			p.fail(at)
		}
	}
	n = p.node(textNode, at)
	n.text = text
	return n, end
}

// quoteEnd returns the offset after the quoted text that begins at an offset; -1 if it does not end on the same line.
func (p *plainReader) quoteEnd(at int) int {
	mark := p.src[at]
	for i := at + 1; i < p.to; i++ {
		switch c := p.src[i]; {
		case c == '\\' && mark == '"':
			i++
		case c != mark:
		case mark == '\'' && i+1 < p.to && p.src[i+1] == '\'':
			i++
		default:
			return i + 1
		}
	}
	return -1
}

// simpleEscapes are the escapes, in double quotes, that consist of a backslash and one letter.
var simpleEscapes = map[byte]string{
	'0': "\x00", 'a': "\a", 'b': "\b", 't': "\t", 'n': "\n", 'v': "\v", 'f': "\f", 'r': "\r", 'e': "\x1b",
	' ': " ", '"': `"`, '/': "/", '\\': `\`, 'N': "\u0085", '_': "\u00a0", 'L': "\u2028", 'P': "\u2029",
}

// escapeDigits are the escapes that give a character's number, with the count of hexadecimal digits in the number.
var escapeDigits = map[byte]int{'x': 2, 'u': 4, 'U': 8}

// unescape replaces the escapes in a text in double quotes. ok is false for escapes that are left to the YAML library,
// such as halves of a UTF-16 surrogate pair.
func unescape(s string) (text string, ok bool) {
	var b strings.Builder
	b.Grow(len(s))
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 {
			b.WriteString(s)
			return b.String(), true
		}
		b.WriteString(s[:i])
		if s = s[i+1:]; s == "" {
			return "", false
		}
		letter, digits := s[0], escapeDigits[s[0]]
		if s = s[1:]; digits == 0 {
			plain, known := simpleEscapes[letter]
			if !known {
				return "", false
			}
			b.WriteString(plain)
			continue
		}
		if len(s) < digits {
			return "", false
		}
		r, err := strconv.ParseUint(s[:digits], 16, 32)
		if err != nil || r > utf8.MaxRune || !utf8.ValidRune(rune(r)) {
			return "", false
		}
		b.WriteRune(rune(r))
		s = s[digits:]
	}
}

// plainScan scans a scalar without quotes. end is the offset after its last character; stop is the offset at which
// something else begins: a comment, the colon of a key, or a separator of flow style. If no scalar begins at the offset
// at, end and stop are equal to at.
func (p *plainReader) plainScan(at int, flow bool) (end, stop int) {
	c := p.src[at]
	if (c == '.' || c == '-') && at == p.begin &&
		(strings.HasPrefix(p.src[at:], "...") || strings.HasPrefix(p.src[at:], "---")) {
		return at, at // a document marker, or a text that looks like one
	}
	if notPlain[c]&begins != 0 {
		// The indicators - ? : may begin a text if another character follows without a space.
		if c != '-' && c != '?' && c != ':' || at+1 == p.to || blank(p.src[at+1]) || flow &&
			notPlain[p.src[at+1]]&parts != 0 {
			return at, at
		}
	}
	for i := at; i < p.to; i++ {
		c := p.src[i]
		if notPlain[c]&inside == 0 {
			end = i + 1
			continue
		}
		switch {
		case blank(c):
		case c == ':':
			if i+1 == p.to || blank(p.src[i+1]) || flow && notPlain[p.src[i+1]]&parts != 0 {
				return end, i
			}
			end = i + 1
		case c == '#':
			if blank(p.src[i-1]) {
				return end, i
			}
			end = i + 1
		case flow:
			return end, i
		default:
			end = i + 1
		}
	}
	return end, p.to
}

const (
	begins = 1 << iota // the byte cannot begin a scalar without quotes
	inside             // the byte needs a check inside a scalar without quotes
	parts              // the byte separates values in flow style
)

// notPlain says for each byte in which way it is special in scalars without quotes, by the bits begins, inside and
// parts; 0 means that the byte is not special.
var notPlain = func() (t [256]uint8) {
	for _, c := range "-?:,[]{}#&*!|>'\"%@` \t" {
		t[c] |= begins
	}
	for _, c := range ":# \t" {
		t[c] |= inside
	}
	for _, c := range ",[]{}" {
		t[c] |= inside | parts
	}
	return t
}()

func (p *plainReader) skipSpaces(i int) int {
	for i < p.to && p.src[i] == ' ' {
		i++
	}
	return i
}

func (p *plainReader) skipBlanks(i int) int {
	for i < p.to && blank(p.src[i]) {
		i++
	}
	return i
}

func blank(c byte) bool { return c == ' ' || c == '\t' }
