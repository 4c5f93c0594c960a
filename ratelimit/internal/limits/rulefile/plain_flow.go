package rulefile

// rootFlow is the depth of flow style that is the whole document, as in a file of JSON.
const rootFlow = -1

// flow reads a value of flow style, like {key: a, replaces: [{name: b}]}, which may go over many
// lines; end is where it ends on the present line, -1 for what is left to the library.
func (p *plainReader) flow(at, depth int) (n *node, end int) {
	switch c := p.src[at]; {
	case depth > maxPlainDepth:
		p.fail(at)
		return nil, -1
	case c == '{':
		return p.braces(at, depth)
	case c == '[':
		return p.brackets(at, depth)
	case c == '"' || c == '\'':
		return p.quoted(at)
	}
	if end = p.plainEnd(at, true); end < 0 {
		p.fail(at)
		return nil, -1
	}
	n = p.node(textNode, at)
	n.plain, n.text = true, p.src[at:end]
	return n, end
}

func (p *plainReader) braces(at, depth int) (n *node, end int) {
	n = p.node(mapNode, at)
	mark := len(p.stack)
	p.descriptors = false
	for first := true; ; first = false {
		from := p.gap(at + 1)
		if from < 0 {
			return nil, -1
		}
		if p.src[from] == '}' { // an empty map, or a comma after the last value
			n.pairs = p.take(mark)
			return n, from + 1
		}
		colon := p.keyEnd(from, true)
		if colon < 0 {
			p.fail(from)
			return nil, -1
		}
		key := p.key(from, colon)
		if p.bad {
			return nil, -1
		}
		if first {
			n.pos = key.pos
		}
		if from = p.gap(colon + 1); from < 0 {
			return nil, -1
		}
		p.descriptors = depth == rootFlow && key.text == "descriptors"
		value, behind := p.flow(from, depth+1)
		if behind < 0 {
			return nil, -1
		}
		p.stack = append(p.stack, pair{key, value})
		if at = p.gap(behind); at < 0 {
			return nil, -1
		}
		if p.src[at] == '}' {
			n.pairs = p.take(mark)
			return n, at + 1
		} else if p.src[at] != ',' {
			p.fail(at)
			return nil, -1
		}
	}
}

func (p *plainReader) brackets(at, depth int) (n *node, end int) {
	n = p.node(listNode, at)
	mark := len(p.stack)
	streamed := p.streams()
	nodes, chunks := p.nodes, p.chunks
	for {
		from := p.gap(at + 1)
		if from < 0 {
			return nil, -1
		}
		if p.src[from] == ']' { // an empty list, or a comma after the last value
			n.pairs = p.take(mark)
			return n, from + 1
		}
		value, behind := p.flow(from, depth+1)
		if behind < 0 {
			return nil, -1
		}
		if !streamed {
			p.stack = append(p.stack, pair{value: value})
		} else {
			if !p.each(value) {
				p.fail(from)
				return nil, -1
			}
			p.nodes, p.chunks = nodes, chunks
		}
		if at = p.gap(behind); at < 0 {
			return nil, -1
		}
		if p.src[at] == ']' {
			n.pairs = p.take(mark)
			return n, at + 1
		} else if p.src[at] != ',' {
			p.fail(at)
			return nil, -1
		}
	}
}

// gap skips what may stand between the parts of flow style: blanks, comments and line ends. It
// returns the offset of the next part, -1 where the text or the document ends.
func (p *plainReader) gap(at int) int {
	for {
		at = p.skipBlanks(at)
		if at < p.to && (p.src[at] != '#' || at > p.begin && !blank(p.src[at-1])) {
			return at
		}
		if !p.advance() || p.marker("---") || p.marker("...") {
			p.fail(p.to)
			return -1
		}
		at = p.begin
	}
}
