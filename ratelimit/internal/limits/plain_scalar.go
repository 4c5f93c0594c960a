package limits

import "strings"

// scalar reads the value from at to the end of the line, then goes to the next line, which must not
// continue it.
func (p *plainReader) scalar(at, indent int) *node {
	var n *node
	switch end := at; p.src[at] {
	case '"', '\'':
		n, end = p.quoted(at)
		if end < 0 || !p.nothingAfter(end) {
			return p.fail()
		}
	case '{', '[':
		n, end = p.flow(at, 0)
		if end < 0 || !p.nothingAfter(end) {
			return p.fail()
		}
	default:
		n = p.node(textNode, at)
		if end = p.plainEnd(at); end <= at {
			return p.fail()
		}
		n.plain, n.text = true, p.src[at:end]
	}
	p.next()
	if !p.eof && p.indent() > indent {
		return p.fail()
	}
	return n
}

// nothingAfter says whether only a comment follows.
func (p *plainReader) nothingAfter(end int) bool {
	after := p.skipSpaces(end)
	return after == p.to || after > end && p.src[after] == '#'
}

// quoted reads a quoted text without escapes; end is -1 for any other.
func (p *plainReader) quoted(at int) (n *node, end int) {
	i := strings.IndexByte(p.src[at+1:p.to], p.src[at])
	if i < 0 {
		return nil, -1
	}
	n = p.node(textNode, at)
	n.text = p.src[at+1 : at+1+i]
	end = at + i + 2
	if strings.IndexByte(n.text, '\\') >= 0 || end < p.to && p.src[end] == p.src[at] {
		return nil, -1
	}
	return n, end
}

// flow reads a value of flow style that ends on its line, like {key: a, replaces: [{name: b}]}; end is
// -1 for anything richer.
func (p *plainReader) flow(at, depth int) (n *node, end int) {
	switch c := p.src[at]; {
	case depth > maxPlainDepth:
		return nil, -1
	case c == '{':
		return p.braces(at, depth)
	case c == '[':
		return p.brackets(at, depth)
	case c == '"' || c == '\'':
		return p.quoted(at)
	}
	for end = at; end < p.to && plainChars[p.src[end]]&insideFlow != 0; end++ {
	}
	if end == at || plainChars[p.src[at]]&beginsPlain == 0 {
		return nil, -1
	}
	n = p.node(textNode, at)
	n.plain, n.text = true, p.src[at:end]
	return n, end
}

func (p *plainReader) braces(at, depth int) (n *node, end int) {
	n = p.node(mapNode, at)
	mark := len(p.stack)
	line := p.from
	defer func() { p.from = line }()
	for {
		p.from = p.skipSpaces(at + 1)
		colon := p.keyEnd()
		if colon < 0 {
			return nil, -1
		}
		key := p.node(textNode, p.from)
		key.plain, key.text = true, p.intern(p.src[p.from:colon])
		if mark == len(p.stack) {
			n.pos = key.pos
		}
		from := p.skipSpaces(colon + 1)
		if from == p.to {
			return nil, -1
		}
		value, behind := p.flow(from, depth+1)
		p.stack = append(p.stack, pair{key, value})
		if at = p.separator(behind); at < 0 {
			return nil, -1
		}
		if p.src[at] == '}' {
			n.pairs = p.take(mark)
			return n, at + 1
		} else if p.src[at] != ',' {
			return nil, -1
		}
	}
}

func (p *plainReader) brackets(at, depth int) (n *node, end int) {
	n = p.node(listNode, at)
	mark := len(p.stack)
	for {
		from := p.skipSpaces(at + 1)
		if from == p.to {
			return nil, -1
		}
		value, behind := p.flow(from, depth+1)
		p.stack = append(p.stack, pair{value: value})
		if at = p.separator(behind); at < 0 {
			return nil, -1
		}
		if p.src[at] == ']' {
			n.pairs = p.take(mark)
			return n, at + 1
		} else if p.src[at] != ',' {
			return nil, -1
		}
	}
}

// separator is where the byte behind a value of flow style stands, -1 when there is none on the line.
func (p *plainReader) separator(behind int) int {
	if behind < 0 {
		return -1
	}
	if i := p.skipSpaces(behind); i < p.to {
		return i
	}
	return -1
}

// plainEnd finds the end of a plain scalar, -1 if it is not an easy one.
func (p *plainReader) plainEnd(at int) int {
	if plainChars[p.src[at]]&beginsPlain == 0 {
		return -1
	}
	end := at // behind the last byte that is no space
	for i := at; i < p.to; i++ {
		switch c := p.src[i]; {
		case plainChars[c]&insidePlain != 0:
			end = i + 1
		case c == ' ':
		case c == ':' && i+1 < p.to && p.src[i+1] != ' ':
			end = i + 1
		case c == '#' && p.src[i-1] != ' ':
			end = i + 1
		case c == '#': // a comment
			return end
		default:
			return -1
		}
	}
	return end
}

const (
	beginsPlain = 1 << iota
	insidePlain
	insideFlow // in braces, where less is plain
)

// plainChars says which bytes a plain scalar may begin with and hold without a look at their
// neighbours. It is narrower than YAML.
var plainChars = func() (t [256]uint8) {
	for c := '0'; c <= 'z'; c++ {
		if c <= '9' || 'A' <= c && c <= 'Z' || c >= 'a' {
			t[c] = beginsPlain | insidePlain | insideFlow
		}
	}
	for _, c := range "_/.$^+(;\\" {
		t[c] = beginsPlain | insidePlain | insideFlow
	}
	for _, c := range "-*@=~%" {
		t[c] = insidePlain | insideFlow
	}
	for _, c := range ",&)<>?!|[]{}\"'`" {
		t[c] = insidePlain
	}
	return t
}()
