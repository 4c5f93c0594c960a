package rulefile

// rootFlow is the depth of flow style that is the whole document, as in a JSON file.
const rootFlow = -1

// value reads a scalar, or a value of flow style, like {key: a, replaces: [{name: b}]}, which may extend over many
// lines. end is where it ends on the present line.
func (p *plainReader) value(at, depth int, inFlow bool) (n *node, end int) {
	switch c := p.src[at]; {
	case depth > maxPlainDepth:
		p.fail(at)
	case p.opens(at):
		return p.collection(at, depth)
	case c == '"' || c == '\'':
		return p.quoted(at)
	}
	end, stop := p.plainScan(at, inFlow)
	if end == at || !inFlow && stop < p.to && p.src[stop] == ':' {
		p.fail(at)
	}
	n = p.node(textNode, at)
	n.plain, n.text = true, p.src[at:end]
	return n, end
}

// collection reads a map in braces or a list in brackets.
func (p *plainReader) collection(at, depth int) (n *node, end int) {
	kind, closing := listNode, byte(']')
	if p.src[at] == '{' {
		kind, closing = mapNode, '}'
		p.descriptors = false
	}
	n = p.node(kind, at)
	mark, items := len(p.stack), p.items()
	for first := true; ; first = false {
		at = p.gap(at + 1)
		if p.src[at] != closing { // otherwise the collection is empty, or a comma follows its last value
			var value *node
			if kind == mapNode {
				key, begin := p.flowKey(at)
				if first {
					n.pos = key.pos
				}
				p.descriptors = depth == rootFlow && key.text == "descriptors"
				value, at = p.value(begin, depth+1, true)
				p.stack = append(p.stack, pair{key, value})
			} else {
				value, at = p.value(at, depth+1, true)
				p.add(items, value)
			}
			at = p.gap(at)
		}
		switch p.src[at] {
		case ',':
		case closing:
			n.pairs = p.take(mark)
			return n, at + 1
		default:
			p.fail(at)
		}
	}
}

// flowKey reads a key of flow style and its colon. begin is where the key's value begins.
func (p *plainReader) flowKey(at int) (key *node, begin int) {
	colon := p.keyEnd(at, true)
	if colon < 0 {
		p.fail(at)
	}
	return p.key(at, colon), p.gap(colon + 1)
}

// gap skips blanks, comments and line ends between the parts of flow style. It returns the offset of the next part.
func (p *plainReader) gap(at int) int {
	for {
		at = p.skipBlanks(at)
		if at < p.to && (p.src[at] != '#' || at > p.begin && !blank(p.src[at-1])) {
			return at
		}
		if !p.advance() || p.marker("---") || p.marker("...") {
			p.fail(p.to)
		}
		at = p.begin
	}
}
