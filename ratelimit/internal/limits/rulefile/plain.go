package rulefile

import (
	"strings"
	"unicode/utf8"

	"gatehouse/ratelimit/internal/limits"
)

// This file reads the YAML of nearly all rule files without the YAML library, ten times as fast and with a tenth of the
// memory: goccy/go-yaml takes 250 ms for 10,000 rules, a fifth of it in its lexer, and a reload has 100 ms
// (BenchmarkLoad). It reads blocks of maps and lists, plain and quoted scalars on one line, flow style ({…} and […])
// over any number of lines, comments, and any UTF-8 text. It leaves everything else to the library: anchors, merge
// keys, tags, block scalars, scalars over several lines, and every error, so that only the library decides what is
// valid. FuzzPlain checks that both give the same tree.

// maxPlainDepth is the depth of nesting beyond which readPlain leaves a file to the YAML library. The library gets the
// file only after guard has checked the file's tokens.
const maxPlainDepth = 100

// readPlain reads a text that uses only the part of YAML described at the top of this file. For any other text it
// returns nil and the first obstacle. The texts of nodes are substrings of text.
//
// If the function each is not nil, readPlain calls each with every item of the root's descriptors list, until each
// returns false. The nodes of one item are reused for the next, since 100,000 rules would need 80 MB of nodes.
func readPlain(text string, each func(item *node) bool) (root *node, why obstacle) {
	p := plainReader{src: normalizeNewlines(text), each: each, seen: map[string]string{}}
	defer func() {
		if r := recover(); r != nil {
			root, why = nil, r.(obstacle) // the type assertion panics if r is no obstacle
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

// obstacle is the first part of a file that readPlain cannot read. The methods of plainReader panic with an obstacle.
type obstacle struct {
	pos  limits.Pos
	what string
}

// plainReader reads a text line by line. Between calls of its methods it is at a line that has content.
type plainReader struct {
	src      string
	nextLine int // offset at which the next line begins
	line     int32
	begin    int // offset at which this line begins
	from, to int // bounds of this line's content: after the indentation, up to the end of the line
	eof      bool

	// Columns count characters. In a line with characters of several bytes (wide), the last count is kept and
	// continued: columns are requested from left to right, and a line may be as long as the file.
	wide             bool
	countedAt, count int

	each        func(item *node) bool
	descriptors bool // the value that is read next is the root's descriptors list

	seen   map[string]string // one copy of each key
	stack  []pair
	nodes  []node // the unused rest of the chunk from which nodes are allocated
	chunks []pair
}

// advance goes to the next line, whether or not it has content. It returns false at the end of the text.
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

// plainLine reports whether a line is valid UTF-8 without control characters (ok), and whether it has characters
// outside ASCII (wide).
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

// next goes to the next line that has content.
func (p *plainReader) next() {
	for p.advance() {
		p.from = p.skipSpaces(p.begin)
		if i := p.skipBlanks(p.from); i < p.to && p.src[i] != '#' {
			return
		}
	}
}

func (p *plainReader) indent() int { return p.from - p.begin }

// marker reports whether the line begins with the document marker mark, which is --- or ... .
func (p *plainReader) marker(mark string) bool {
	end := p.begin + len(mark)
	return strings.HasPrefix(p.src[p.begin:p.to], mark) && (end == p.to || blank(p.src[end]))
}

// opens reports whether a flow-style collection, { or [, begins at an offset.
func (p *plainReader) opens(at int) bool { return p.src[at] == '{' || p.src[at] == '[' }

// fail stops the reading, by a panic, because of the text at an offset of this line. The YAML library then reads the
// file.
func (p *plainReader) fail(at int) {
	at = min(max(at, p.begin), p.to)
	p.failFor(at, whatIs(p.src[at:p.to]))
}

func (p *plainReader) failFor(at int, what string) {
	panic(obstacle{limits.Pos{Line: p.line, Column: p.column(at)}, what})
}

// whatIs returns the name of the construct, one that readPlain does not read, at the beginning of a text.
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

// block reads the value that begins on this line: a list or a map.
func (p *plainReader) block(depth int) *node {
	if depth > maxPlainDepth {
		p.fail(p.from)
	}
	if p.dash() {
		return p.list(p.indent(), depth)
	}
	return p.mapping(p.indent(), depth)
}

// dash reports whether the line's content is an item of a list, which begins with a dash.
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
				p.fail(p.from) // the library takes a key below the dash, in the dash's column, as part of the item
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

// items receives the items of a list. If streamed is set, it passes them one by one to the function each of readPlain,
// and all items use the same chunks of memory.
type items struct {
	streamed bool
	nodes    []node
	chunks   []pair
}

// items returns the receiver for the items of the list that begins at this line. If they are streamed, the chunks have
// room for a large item, so that items need no further chunks.
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

// below reads the value that follows a key or dash at the end of a line: a block on the next lines, or null. A list
// that is the value of a key may begin in the key's column.
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

// intern returns the reader's one copy of a key. With a single copy, the keys of the compiled rules stay in the
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

// column returns the column, counted in characters from 1, of an offset in this line.
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

// node returns a new node whose position is an offset in this line.
func (p *plainReader) node(k kind, at int) *node {
	if len(p.nodes) == 0 {
		p.nodes = make([]node, 256)
	}
	n := &p.nodes[0]
	p.nodes = p.nodes[1:]
	*n = node{kind: k, pos: limits.Pos{Line: p.line, Column: p.column(at)}, weight: 1, depth: 1}
	return n
}

// take removes from the stack the pairs above mark and returns them as a slice of their own.
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
