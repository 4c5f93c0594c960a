package limits

import (
	"strings"
	"unicode/utf8"
)

// The way through goccy/go-yaml takes 250 ms for 10,000 rules, of which the lexer alone is a fifth,
// and a reload has 100 ms (BenchmarkLoad). So the part of YAML that nearly all rule files are
// written in is read here, ten times as fast: blocks of maps and lists, plain and simply quoted
// scalars on one line, flow style on one line, comments. Anything else (longer flow style, anchors,
// tags, block scalars, escapes, tabs, text outside ASCII, every mistake) is left to the library, so
// that it alone decides what is valid. FuzzPlain holds the two to the same tree.

// maxPlainDepth is where readPlain leaves nesting to the library and its bounds.
const maxPlainDepth = 100

// readPlain reads text if it is written in the plain part of YAML, else it returns nil. Texts of
// nodes are parts of the file's.
//
// With each, the items of the descriptors at the root, if they are blocks, are handed to it one by one
// instead, and their nodes are used again: 100,000 rules need 80 MB of nodes otherwise.
func readPlain(text string, each func(item *node)) *node {
	text = unixLines(text)
	if !plainText(text) {
		return nil
	}
	p := plainReader{src: text, each: each, seen: map[string]string{}}
	p.next()
	if !p.eof && p.rest() == "---" {
		p.next()
	}
	if p.eof {
		return nil
	}
	root := p.block(0)
	if p.bad || !p.eof {
		return nil
	}
	return root
}

// plainText says whether text is printable ASCII; comments may hold any UTF-8.
func plainText(text string) bool {
	comment := false
	for i := range len(text) {
		switch c := text[i]; {
		case c == '\n':
			comment = false
		case c == '#' && (i == 0 || text[i-1] == '\n' || text[i-1] == ' '):
			comment = true
		case c < ' ' || c == 0x7f || c > 0x7f && !comment:
			return false
		}
	}
	return utf8.ValidString(text)
}

// plainReader stands on one line that holds something.
type plainReader struct {
	src      string
	nextLine int // where the next line begins
	line     int32
	begin    int // where this line begins
	from, to int // its content: without indentation, up to the line's end
	eof, bad bool

	each        func(item *node)
	descriptors bool // the value to be read is that of descriptors at the root

	seen   map[string]string // one copy of each key
	stack  []pair
	nodes  []node // unused rest of the present chunk
	chunks []pair
}

// next goes to the next line with content.
func (p *plainReader) next() {
	for {
		if p.nextLine >= len(p.src) {
			p.eof = true
			return
		}
		p.begin = p.nextLine
		p.line++
		if i := strings.IndexByte(p.src[p.begin:], '\n'); i >= 0 {
			p.to = p.begin + i
			p.nextLine = p.to + 1
		} else {
			p.to = len(p.src)
			p.nextLine = p.to
		}
		p.from = p.begin
		for p.from < p.to && p.src[p.from] == ' ' {
			p.from++
		}
		if p.from < p.to && p.src[p.from] != '#' {
			return
		}
	}
}

func (p *plainReader) rest() string { return p.src[p.from:p.to] }
func (p *plainReader) indent() int  { return p.from - p.begin }

// fail ends the reading.
func (p *plainReader) fail() *node {
	p.bad, p.eof = true, true
	return &node{}
}

// block reads what begins on this line.
func (p *plainReader) block(depth int) *node {
	if depth > maxPlainDepth {
		return p.fail()
	}
	if p.dash() {
		return p.list(p.indent(), depth)
	}
	return p.mapping(p.indent(), depth)
}

// dash says whether the line's content is an item of a list.
func (p *plainReader) dash() bool {
	return p.src[p.from] == '-' && (p.from+1 == p.to || p.src[p.from+1] == ' ')
}

func (p *plainReader) list(indent, depth int) *node {
	n := p.node(listNode, p.from)
	mark := len(p.stack)
	streamed := p.descriptors && p.each != nil
	p.descriptors = false
	if streamed { // room for a large item, so that none needs a chunk of its own
		p.nodes, p.chunks = make([]node, 1024), make([]pair, 1024)
	}
	nodes, chunks := p.nodes, p.chunks
	for !p.eof && p.indent() == indent && p.dash() {
		dash := p.from
		p.from = p.skipSpaces(p.from + 1)
		var item *node
		switch {
		case p.from == p.to || p.src[p.from] == '#':
			item = p.below(indent, dash+1, depth)
			if item.plain && !p.eof && !(p.indent() == indent && p.dash()) {
				return p.fail() // the library takes a key at the dash's indentation for the item
			}
		case p.dash():
			return p.fail()
		case p.keyEnd() >= 0:
			item = p.mapping(p.indent(), depth+1)
		default:
			item = p.scalar(p.from, indent)
		}
		if !streamed {
			p.stack = append(p.stack, pair{value: item})
		} else if !p.bad {
			p.each(item)
			p.nodes, p.chunks = nodes, chunks
		}
	}
	if !p.eof && p.indent() > indent {
		return p.fail()
	}
	n.pairs = p.take(mark)
	return n
}

func (p *plainReader) mapping(indent, depth int) *node {
	n := p.node(mapNode, p.from)
	mark := len(p.stack)
	for {
		colon := p.keyEnd()
		if colon < 0 {
			return p.fail()
		}
		key := p.node(textNode, p.from)
		key.plain, key.text = true, p.intern(p.src[p.from:colon])
		p.descriptors = depth == 0 && key.text == "descriptors"
		var value *node
		if at := p.skipSpaces(colon + 1); at == p.to || p.src[at] == '#' {
			value = p.below(indent, colon+1, depth)
		} else {
			value = p.scalar(at, indent)
		}
		p.stack = append(p.stack, pair{key, value})
		if p.eof || p.indent() < indent {
			break
		}
		if p.indent() > indent || p.dash() {
			return p.fail()
		}
	}
	n.pairs = p.take(mark)
	return n
}

// below reads what stands under a key or dash with nothing beside it: a block, or null. A list
// under a key may have the key's indentation.
func (p *plainReader) below(indent, at, depth int) *node {
	null := p.node(textNode, at)
	null.plain, null.text = true, "null"
	list := p.src[at-1] == ':'
	p.next()
	switch {
	case p.eof:
	case p.indent() > indent:
		return p.block(depth + 1)
	case list && p.indent() == indent && p.dash():
		return p.list(indent, depth+1)
	}
	return null
}

// keyEnd finds the colon of a key that begins the line's content, -1 when that is no plain key.
func (p *plainReader) keyEnd() int {
	for i := p.from; i < p.to; i++ {
		switch c := p.src[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_':
		case '0' <= c && c <= '9', c == '-', c == '.':
			if i == p.from {
				return -1
			}
		case c == ':' && i > p.from && (i+1 == p.to || p.src[i+1] == ' '):
			return i
		default:
			return -1
		}
	}
	return -1
}

func (p *plainReader) skipSpaces(i int) int {
	for i < p.to && p.src[i] == ' ' {
		i++
	}
	return i
}

// intern gives equal keys one place in memory, which keeps the compiled rules' keys in the
// processor's cache.
func (p *plainReader) intern(s string) string {
	if have, ok := p.seen[s]; ok {
		return have
	}
	if len(p.seen) < 1000 {
		p.seen[s] = s
	}
	return s
}

// node makes a node that begins at an offset in this line.
func (p *plainReader) node(k kind, at int) *node {
	if len(p.nodes) == 0 {
		p.nodes = make([]node, 256)
	}
	n := &p.nodes[0]
	p.nodes = p.nodes[1:]
	*n = node{kind: k, pos: pos{p.line, int32(at - p.begin + 1)}, weight: 1, depth: 1}
	return n
}

// take moves the pairs gathered since mark off the stack.
func (p *plainReader) take(mark int) []pair {
	n := len(p.stack) - mark
	if len(p.chunks) < n {
		p.chunks = make([]pair, max(n, 256))
	}
	out := p.chunks[:n:n]
	p.chunks = p.chunks[n:]
	copy(out, p.stack[mark:])
	p.stack = p.stack[:mark]
	return out
}
