package rulefile

import (
	"strings"
	"unicode/utf8"

	"gatehouse/ratelimit/internal/limits"
)

// goccy/go-yaml takes 250 ms for 10,000 rules, a fifth of it in the lexer, and a reload has 100 ms (BenchmarkLoad). So
// this package itself reads the YAML of nearly all rule files, ten times as fast and with a tenth of the memory: blocks
// of maps and lists, plain and quoted scalars on one line, flow style over any number of lines, comments, any UTF-8
// text. Everything else (anchors, merge keys, tags, block scalars, scalars over several lines, every error) is left to
// the library, so that it alone decides what is valid. FuzzPlain checks that both give the same tree.

// maxPlainDepth is the nesting that readPlain leaves to the library and its bounds.
const maxPlainDepth = 100

// readPlain reads text if it is written in the plain part of YAML. Otherwise it returns nil and what it could not read.
// Texts of nodes are parts of the file's text.
//
// If each is not nil, it is called with each item of the descriptors at the root, until it returns false, and the
// items' nodes are reused: 100,000 rules would need 80 MB of nodes.
func readPlain(text string, each func(item *node) bool) (root *node, why obstacle) {
	p := plainReader{src: normalizeNewlines(text), each: each, seen: map[string]string{}}
	defer func() {
		if r := recover(); r != nil {
			root, why = nil, r.(obstacle) // any other panic goes on
		}
	}()
	p.next()
	if !p.eof && p.marker("---") {
		p.from = p.skipBlanks(p.from + 3)
		if p.from == p.to || p.src[p.from] == '#' {
			p.next()
		} else if !p.opens(p.from) {
			p.fail(p.from)
		}
	}
	if p.eof {
		return nil, obstacle{}
	}
	if p.opens(p.from) {
		root = p.lastOfLine(p.from, rootFlow)
	} else {
		root = p.block(0)
	}
	if !p.eof {
		p.fail(p.from)
	}
	return root, obstacle{}
}

// obstacle is the first part of a file that readPlain cannot read. The methods of plainReader panic with it.
type obstacle struct {
	pos  limits.Pos
	what string
}

// plainReader is at a line that has content.
type plainReader struct {
	src      string
	nextLine int // where the next line begins
	line     int32
	begin    int // where this line begins
	from, to int // bounds of its content: without indentation, to the line's end
	eof      bool

	// Columns count characters. In a line with characters of several bytes, the last count is kept: positions are
	// queried from left to right, and a line may be a whole file.
	wide             bool
	countedAt, count int

	each        func(item *node) bool
	descriptors bool // the next value is that of descriptors at the root

	seen   map[string]string // one copy of each key
	stack  []pair
	nodes  []node // the unused rest of the present chunk
	chunks []pair
}

// advance goes to the next line, with or without content.
func (p *plainReader) advance() bool {
	if p.nextLine >= len(p.src) {
		p.eof = true
		return false
	}
	p.begin = p.nextLine
	p.line++
	p.countedAt, p.count = p.begin, 1
	if i := strings.IndexByte(p.src[p.begin:], '\n'); i >= 0 {
		p.to = p.begin + i
		p.nextLine = p.to + 1
	} else {
		p.to = len(p.src)
		p.nextLine = p.to
	}
	wide, ok := plainLine(p.src[p.begin:p.to])
	if !ok {
		p.fail(p.from)
	}
	p.wide = wide
	return true
}

// plainLine reports whether a line is UTF-8 without control characters (ok), and whether any of it is outside ASCII
// (wide).
func plainLine(s string) (wide, ok bool) {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= utf8.RuneSelf:
			wide = true
		case c < ' ' && c != '\t' || c == 0x7f:
			return wide, false
		}
	}
	return wide, !wide || utf8.ValidString(s)
}

// next goes to the next line with content.
func (p *plainReader) next() {
	for p.advance() {
		p.from = p.skipSpaces(p.begin)
		if i := p.skipBlanks(p.from); i < p.to && p.src[i] != '#' {
			return
		}
	}
}

func (p *plainReader) indent() int { return p.from - p.begin }

// marker reports whether the line begins with a document marker.
func (p *plainReader) marker(mark string) bool {
	end := p.begin + len(mark)
	return strings.HasPrefix(p.src[p.begin:p.to], mark) && (end == p.to || blank(p.src[end]))
}

// opens reports whether flow style begins at an offset.
func (p *plainReader) opens(at int) bool { return p.src[at] == '{' || p.src[at] == '[' }

// fail ends the reading, because of the text at an offset of this line: the file is left to the library.
func (p *plainReader) fail(at int) {
	at = min(max(at, p.begin), p.to)
	p.failFor(at, whatIs(p.src[at:p.to]))
}

func (p *plainReader) failFor(at int, what string) {
	panic(obstacle{limits.Pos{Line: p.line, Column: p.column(at)}, what})
}

// whatIs names the construct at the beginning of a text that readPlain does not read.
func whatIs(s string) string {
	if strings.HasPrefix(s, "<<") {
		return "a merge key"
	}
	switch (s + " ")[0] {
	case '&':
		return "an anchor"
	case '*':
		return "an alias"
	case '!':
		return "a tag"
	case '|', '>':
		return "a block scalar"
	case '?':
		return "a complex key"
	case '"', '\'':
		return "a quoted text over several lines"
	}
	return "YAML that is rare in rules"
}

// block reads the value that begins on this line.
func (p *plainReader) block(depth int) *node {
	if depth > maxPlainDepth {
		p.fail(p.from)
	}
	if p.dash() {
		return p.list(p.indent(), depth)
	}
	return p.mapping(p.indent(), depth)
}

// dash reports whether the line's content is an item of a list.
func (p *plainReader) dash() bool {
	return p.src[p.from] == '-' && (p.from+1 == p.to || p.src[p.from+1] == ' ')
}

func (p *plainReader) list(indent, depth int) *node {
	n := p.node(listNode, p.from)
	mark, items := len(p.stack), p.items()
	for !p.eof && p.indent() == indent && p.dash() {
		dash := p.from
		p.from = p.skipSpaces(p.from + 1)
		var item *node
		switch {
		case p.from == p.to || p.src[p.from] == '#':
			item = p.below(indent, dash+1, depth)
			if item.plain && !p.eof && !(p.indent() == indent && p.dash()) {
				p.fail(p.from) // the library takes a key with the dash's indentation as part of the item
			}
		case p.dash():
			p.fail(p.from)
		case p.keyEnd(p.from, false) >= 0:
			item = p.mapping(p.indent(), depth+1)
		default:
			item = p.scalar(p.from, indent)
		}
		p.add(items, item)
	}
	if !p.eof && p.indent() > indent {
		p.fail(p.from)
	}
	n.pairs = p.take(mark)
	return n
}

// items takes the items of a list. With streamed it passes them to the caller of readPlain, one by one, each in the
// same chunks.
type items struct {
	streamed bool
	nodes    []node
	chunks   []pair
}

// items returns where the items of the list that begins here go. Chunks of streamed items have room for a large item,
// so that no item needs a chunk of its own.
func (p *plainReader) items() items {
	streamed := p.descriptors && p.each != nil
	p.descriptors = false
	if streamed {
		p.nodes, p.chunks = make([]node, 1024), make([]pair, 1024)
	}
	return items{streamed, p.nodes, p.chunks}
}

func (p *plainReader) add(to items, item *node) {
	if !to.streamed {
		p.stack = append(p.stack, pair{value: item})
		return
	}
	if !p.each(item) {
		p.fail(p.from)
	}
	p.nodes, p.chunks = to.nodes, to.chunks
}

func (p *plainReader) mapping(indent, depth int) *node {
	n := p.node(mapNode, p.from)
	mark := len(p.stack)
	for {
		colon := p.keyEnd(p.from, false)
		if colon < 0 {
			p.fail(p.from)
		}
		key := p.key(p.from, colon)
		p.descriptors = depth == 0 && key.text == "descriptors"
		var value *node
		if at := p.skipBlanks(colon + 1); at == p.to || p.src[at] == '#' {
			value = p.below(indent, colon+1, depth)
		} else {
			value = p.scalar(at, indent)
		}
		p.stack = append(p.stack, pair{key, value})
		if len(p.stack)-mark > maxKeys {
			p.fail(p.from)
		}
		if p.eof || p.indent() < indent {
			break
		}
		if p.indent() > indent || p.dash() {
			p.fail(p.from)
		}
	}
	n.pairs = p.take(mark)
	return n
}

// below reads the value after a key or dash that ends its line: a block, or null. A list under a key may have the key's
// indentation.
func (p *plainReader) below(indent, at, depth int) *node {
	null := p.node(textNode, at)
	null.plain, null.text = true, "null"
	list := p.src[at-1] == ':'
	p.next()
	switch {
	case p.eof:
	case p.indent() > indent:
		if p.opens(p.from) {
			return p.scalar(p.from, indent)
		}
		return p.block(depth + 1)
	case list && p.indent() == indent && p.dash():
		return p.list(indent, depth+1)
	}
	return null
}

// intern returns one copy of equal keys, which keeps the compiled rules' keys in the processor's cache.
func (p *plainReader) intern(s string) string {
	if have, ok := p.seen[s]; ok {
		return have
	}
	if len(p.seen) < 1000 {
		p.seen[s] = s
	}
	return s
}

// column returns the column of an offset in this line.
func (p *plainReader) column(at int) int32 {
	if !p.wide {
		return int32(at - p.begin + 1)
	}
	if at >= p.countedAt {
		p.count += utf8.RuneCountInString(p.src[p.countedAt:at])
	} else {
		p.count -= utf8.RuneCountInString(p.src[at:p.countedAt])
	}
	p.countedAt = at
	return int32(p.count)
}

// node returns a node that begins at an offset in this line.
func (p *plainReader) node(k kind, at int) *node {
	if len(p.nodes) == 0 {
		p.nodes = make([]node, 256)
	}
	n := &p.nodes[0]
	p.nodes = p.nodes[1:]
	*n = node{kind: k, pos: limits.Pos{Line: p.line, Column: p.column(at)}, weight: 1, depth: 1}
	return n
}

// take pops the pairs pushed since mark.
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
