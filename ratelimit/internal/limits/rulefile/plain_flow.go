package rulefile

// rootFlow is the depth of a map or list in flow style ({…} or […]) that is the whole document, as in a JSON file.
const rootFlow = -1

// value reads a scalar, or a map or list in flow style, such as {key: a, replaces: [{name: b}]}, which may extend over
// several lines. end is the offset of its end in the line that is then the present one.
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

// collection reads a map in braces or a list in brackets, which begins at offset at.
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
		if p.src[at] != closing { // false for an empty collection, and after a trailing comma
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

// flowKey reads a key of a map in braces, and its colon. begin is the offset at which the key's value begins.
func (p *plainReader) flowKey(at int) (key *node, begin int) {
	colon := p.keyEnd(at, true)
	if colon < 0 {
		p.fail(at)
	}
	return p.key(at, colon), p.gap(colon + 1)
}

// gap skips blanks, comments and ends of lines between the parts of a collection in flow style. It returns the offset
// of the next part.
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
