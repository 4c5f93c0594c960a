package mail

import (
	"html"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plainText is the HTML of a mail for readers of plain text: its words, a line for each block, and behind each link
// its address. It knows HTML only as far as mails go; whatever it makes of a broken document is still nothing but
// text.
func plainText(document string) string {
	var p plain
	for document != "" {
		text, rest, more := strings.Cut(document, "<")
		p.text(text)
		if !more {
			break
		}
		document = p.tag(rest)
	}
	return p.finish()
}

// plain gathers the text.
type plain struct {
	lines []string
	line  strings.Builder
	href  string // of the link that is open
	label string // its words so far
}

func (p *plain) text(s string) {
	s = html.UnescapeString(s)
	if s == "" {
		return
	}
	words := strings.Join(strings.FieldsFunc(s, blank), " ")
	first, _ := utf8.DecodeRuneInString(s)
	last, _ := utf8.DecodeLastRuneInString(s)
	if p.line.Len() > 0 && blank(first) && !strings.HasSuffix(p.line.String(), " ") {
		p.line.WriteByte(' ')
	}
	p.line.WriteString(words)
	p.label += words
	if words != "" && blank(last) {
		p.line.WriteByte(' ')
	}
}

func blank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// tag reads a tag whose < is gone and returns what follows it.
func (p *plain) tag(s string) string {
	if after, ok := strings.CutPrefix(s, "!--"); ok {
		_, rest, _ := strings.Cut(after, "-->")
		return rest
	}
	if s == "" || !(s[0] == '/' || s[0] == '!' || s[0] == '?' || asciiLetter(s[0])) {
		p.text("<")
		return s
	}
	inside, rest := cutTag(s)
	name, attributes := inside, ""
	if i := strings.IndexFunc(inside, unicode.IsSpace); i >= 0 {
		name, attributes = inside[:i], inside[i:]
	}
	name = strings.ToLower(strings.TrimSuffix(name, "/"))
	switch name {
	case "script", "style", "title", "head":
		return skipElement(rest, name)
	case "a":
		p.endLink()
		p.href, p.label = attribute(attributes, "href"), ""
	case "/a":
		p.endLink()
	case "br", "/p", "/div", "/h1", "/h2", "/h3", "/h4", "/li", "/tr", "/ul", "/ol", "/table", "/title", "hr",
		"/blockquote":
		p.newLine()
	case "p", "div", "h1", "h2", "h3", "h4", "li", "tr", "ul", "ol", "table", "blockquote":
		if p.line.Len() > 0 {
			p.newLine()
		}
	case "td", "th":
		p.text(" ")
	}
	return rest
}

func asciiLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// cutTag splits at the > that ends the tag: not one inside quotes.
func cutTag(s string) (inside, rest string) {
	var quote byte
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case (c == '"' || c == '\'') && i > 0 && s[i-1] == '=':
			quote = c
		case c == '>':
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// skipElement is what follows the element's end tag.
func skipElement(s, name string) string {
	end := "</" + name
	for i := 0; i+len(end) <= len(s); i++ {
		if s[i] == '<' && strings.EqualFold(s[i:i+len(end)], end) {
			_, rest := cutTag(s[i+1:])
			return rest
		}
	}
	return ""
}

// attribute is the value of a quoted or bare attribute.
func attribute(s, name string) string {
	for s != "" {
		s = strings.TrimLeftFunc(s, unicode.IsSpace)
		key := s
		if i := strings.IndexFunc(s, func(r rune) bool { return r == '=' || unicode.IsSpace(r) }); i >= 0 {
			key, s = s[:i], s[i:]
		} else {
			s = ""
		}
		value := ""
		if after, ok := strings.CutPrefix(strings.TrimLeftFunc(s, unicode.IsSpace), "="); ok {
			after = strings.TrimLeftFunc(after, unicode.IsSpace)
			if after != "" && (after[0] == '"' || after[0] == '\'') {
				value, s, _ = strings.Cut(after[1:], after[:1])
			} else if i := strings.IndexFunc(after, unicode.IsSpace); i >= 0 {
				value, s = after[:i], after[i:]
			} else {
				value, s = after, ""
			}
		}
		if strings.EqualFold(key, name) {
			return html.UnescapeString(value)
		}
	}
	return ""
}

// endLink writes the address of the link that is open, unless its words are the address.
func (p *plain) endLink() {
	href := strings.Join(strings.FieldsFunc(p.href, blank), "")
	if href != "" && href != strings.TrimSpace(p.label) && !strings.HasPrefix(href, "#") {
		if words := strings.TrimRight(p.line.String(), " "); words != "" {
			p.line.Reset()
			p.line.WriteString(words + ": ")
		}
		p.line.WriteString(href + " ")
	}
	p.href, p.label = "", ""
}

func (p *plain) newLine() {
	p.lines = append(p.lines, strings.TrimSpace(p.line.String()))
	p.line.Reset()
}

// finish joins the lines with an empty one between any two.
func (p *plain) finish() string {
	p.endLink()
	p.newLine()
	var out strings.Builder
	for _, line := range p.lines {
		if line == "" {
			continue
		}
		if out.Len() > 0 {
			out.WriteString("\n\n")
		}
		out.WriteString(line)
	}
	out.WriteByte('\n')
	return out.String()
}
