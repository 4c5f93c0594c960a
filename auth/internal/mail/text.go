package mail

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// plainText converts the HTML of a mail to plain text, with a line for each block and the URL of each link after its
// text.
func plainText(document string) string {
	var p plain
	tokens := html.NewTokenizer(strings.NewReader(document))
	for tokens.Next() != html.ErrorToken {
		p.add(tokens.Token())
	}
	return p.finish()
}

// plain collects the plain text while plainText reads the HTML.
type plain struct {
	lines []string
	line  strings.Builder
	skip  string // the element whose contents are left out until its end tag; "" for none
	href  string // the URL of the open link; "" for none
	label string // the text of the open link so far
}

func (p *plain) text(s string) {
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

// add processes the next token of the document.
func (p *plain) add(t html.Token) {
	switch {
	case p.skip != "":
		if t.Type == html.EndTagToken && t.Data == p.skip {
			p.skip = ""
		}
	case t.Type == html.TextToken:
		p.text(t.Data)
	case t.Type == html.StartTagToken || t.Type == html.SelfClosingTagToken:
		p.begin(t)
	case t.Type == html.EndTagToken:
		p.end(t.Data)
	}
}

func (p *plain) begin(t html.Token) {
	switch t.Data {
	case "script", "style", "title", "head":
		p.skip = t.Data
	case "a":
		p.endLink()
		for _, attribute := range t.Attr {
			if attribute.Key == "href" {
				p.href = attribute.Val
			}
		}
	case "br", "hr":
		p.newLine()
	case "p", "div", "h1", "h2", "h3", "h4", "li", "tr", "ul", "ol", "table", "blockquote":
		if p.line.Len() > 0 {
			p.newLine()
		}
	case "td", "th":
		p.text(" ")
	}
}

func (p *plain) end(name string) {
	switch name {
	case "a":
		p.endLink()
	case "p", "div", "h1", "h2", "h3", "h4", "li", "tr", "ul", "ol", "table", "title", "blockquote":
		p.newLine()
	}
}

// endLink writes the URL of the open link after the link's text, or nothing if the text is the URL. It closes the link.
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

// finish returns the lines, with an empty line between any two.
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
