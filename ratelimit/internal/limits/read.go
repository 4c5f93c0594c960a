package limits

import (
	"math"
	"strings"
)

// The keys of each level. knownKeys is all of them, for "did you mean" and for the
// difference between an unknown key and one in the wrong place.
var (
	rootKeys     = []string{"domain", "descriptors", "on_store_failure"}
	entryKeys    = []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata"}
	limitKeys    = []string{"unit", "requests_per_unit", "unit_multiplier", "unlimited", "name", "replaces"}
	replacesKeys = []string{"name"}
	knownKeys    = append(append(append([]string{}, rootKeys...), entryKeys...), limitKeys...)
)

// reader turns the nodes of one file into a document and reports what does not fit by its
// form: keys that are unknown or out of place, values of a wrong type, metadata that no JSON can hold.
type reader struct {
	file   string
	domain string
	path   []string // the entries above, as labels
	wrong  int      // problems so far
	report *report
}

func (r *reader) problem(p pos, text, format string, args ...any) {
	r.wrong++
	r.report.problem(place{file: r.file, pos: p, domain: r.domain, path: strings.Join(r.path, ".")}, text, format, args...)
}

// readDocument reads the root of a file.
func readDocument(file string, root *node, rep *report) document {
	r := &reader{file: file, report: rep}
	return r.document(root)
}

// streamDocument reads a file of plain YAML without holding all its nodes at once. It gives up on
// any other file and on the first problem, which readDocument can describe better.
func streamDocument(file, text string, rep *report) (doc document, ok bool) {
	r := &reader{file: file, report: rep.another()}
	var list entryChunks
	index := 0
	root, _ := readPlain(text, func(item *node) bool {
		list.last = r.item(list.last, index, item)
		list.grow()
		index++
		return r.wrong == 0 && rep.step()
	})
	if root == nil || r.wrong > 0 {
		return document{}, false
	}
	doc = r.document(root)
	if index > 0 {
		doc.entries = list.joined(rep)
	}
	return doc, r.wrong == 0
}

// entryChunks gathers entries in pieces. Appending to one slice would move 25 MB at once for 100,000
// rules, during which a processor serves nobody.
type entryChunks struct {
	full [][]entry
	last []entry
	size int // of all in full
}

const entriesPerChunk = 256

// grow begins a new chunk when the last is full.
func (l *entryChunks) grow() {
	if len(l.last) == entriesPerChunk {
		l.full, l.size = append(l.full, l.last), l.size+len(l.last)
		l.last = make([]entry, 0, entriesPerChunk)
	}
}

// joined is all entries as one slice. The chunks are gone then.
func (l *entryChunks) joined(rep *report) []entry {
	if len(l.full) == 0 {
		return l.last
	}
	out := make([]entry, 0, l.size+len(l.last))
	for i, chunk := range l.full {
		out = append(out, chunk...)
		l.full[i] = nil
		rep.step()
	}
	return append(out, l.last...)
}

func (r *reader) document(root *node) document {
	doc := document{file: r.file, pos: root.pos}
	if root.isNull() {
		return doc // an empty file: the missing domain is reported
	}
	if root.kind != mapNode {
		r.problem(root.pos, root.shown(), "the file must be a map with %s, not %s", orList(rootKeys), root.whatText())
		doc.unreadable = true
		return doc
	}
	for _, p := range root.pairs { // first, so that every other message can name it
		if p.key.text == "domain" && p.value.kind == textNode && !p.value.isNull() {
			r.domain = p.value.text
		}
	}
	r.eachKey(root, "the file", rootKeys, func(key string, v *node) {
		switch key {
		case "domain":
			var ok bool
			doc.domain, ok = r.text(key, v)
			doc.pos, doc.unreadable = v.pos, doc.unreadable || !ok
		case "on_store_failure":
			doc.failurePos = v.pos
			doc.failure = r.failureMode(v)
		case "descriptors":
			doc.entries = r.entries(v)
		}
	})
	return doc
}

func (r *reader) failureMode(v *node) FailureMode {
	if v.isNull() {
		return FailureUnset
	}
	s, ok := r.text("on_store_failure", v)
	if !ok {
		return FailureUnset
	}
	mode, err := ParseFailureMode(s)
	if err != nil || mode == FailureUnset {
		r.problem(v.pos, s, "on_store_failure %s is unknown; %s%s", quote(s), allow(failureWords()), didYouMean(s, failureWords()))
	}
	return mode
}

// entries reads a descriptors list.
func (r *reader) entries(list *node) []entry {
	if list.isNull() {
		return nil
	}
	if list.kind != listNode {
		r.problem(list.pos, list.shown(), "descriptors must be a list, not %s", list.whatText())
		return nil
	}
	out := make([]entry, 0, len(list.pairs))
	for i, p := range list.pairs {
		if !r.report.step() {
			return out
		}
		out = r.item(out, i, p.value)
	}
	return out
}

// item reads one item of a descriptors list.
func (r *reader) item(list []entry, index int, item *node) []entry {
	if item.kind != mapNode {
		r.problem(item.pos, item.shown(), "descriptors[%d] must be a map with a key, not %s", index, item.whatText())
		return list
	}
	return append(list, r.entry(index, item))
}

func (r *reader) entry(index int, n *node) entry {
	e := entry{file: r.file, index: index, pos: n.pos}
	r.path = append(r.path, entryLabel(index, n))
	r.eachKey(n, "a descriptor", entryKeys, func(key string, v *node) {
		switch key {
		case "key":
			s, ok := r.text(key, v)
			e.key, e.keyUnreadable = s, !ok
		case "value":
			e.value, _ = r.text(key, v)
			e.valuePos = v.pos
		case "rate_limit":
			e.limit = r.limit(v)
		case "descriptors":
			e.children = r.entries(v)
		case "shadow_mode":
			e.shadow, _ = r.boolean(key, v)
			e.shadowPos = v.pos
		case "quota_mode":
			e.quota, _ = r.boolean(key, v)
			e.quotaPos = v.pos
		case "detailed_metric":
			e.detailed, _ = r.boolean(key, v)
			e.detailedPos = v.pos
		case "value_to_metric":
			e.valueToMetric, _ = r.boolean(key, v)
		case "share_threshold":
			e.share, _ = r.boolean(key, v)
			e.sharePos = v.pos
		case "metadata":
			e.metadata = r.metadata(v)
		}
	})
	r.path = r.path[:len(r.path)-1]
	return e
}

// entryLabel names an entry in messages before it is read: key_value, or its index without a key.
func entryLabel(index int, n *node) string {
	var key, value string
	for _, p := range n.pairs {
		if p.value.kind != textNode || p.value.isNull() {
			continue
		}
		switch p.key.text {
		case "key":
			key = p.value.text
		case "value":
			value = p.value.text
		}
	}
	return label(index, key, value)
}

func (r *reader) limit(n *node) *limit {
	if n.isNull() {
		return nil
	}
	l := &limit{pos: n.pos}
	if n.kind != mapNode {
		r.problem(n.pos, n.shown(), "rate_limit must be a map with %s, not %s", orList(limitKeys), n.whatText())
		l.unreadable = true
		return l
	}
	ok := r.eachKey(n, "rate_limit", limitKeys, func(key string, v *node) {
		var ok bool
		switch key {
		case "unit":
			l.unit, ok = r.text(key, v)
			l.hasUnit, l.unitPos = ok && !v.isNull(), v.pos
		case "requests_per_unit":
			l.perUnit, ok = r.uint32(key, v, 0)
			l.hasPerUnit, l.perUnitPos = ok && !v.isNull(), v.pos
		case "unit_multiplier":
			l.multiplier, ok = r.uint32(key, v, 1)
			l.multiplierPos = v.pos
		case "unlimited":
			l.unlimited, ok = r.boolean(key, v)
		case "name":
			l.name, ok = r.text(key, v)
			l.namePos = v.pos
		case "replaces":
			l.replaces, ok = r.replaces(v), true
		}
		l.unreadable = l.unreadable || !ok
	})
	l.unreadable = l.unreadable || !ok
	return l
}

func (r *reader) replaces(list *node) []replaced {
	if list.isNull() {
		return nil
	}
	if list.kind != listNode {
		r.problem(list.pos, list.shown(), "replaces must be a list of {name: …}, not %s", list.whatText())
		return nil
	}
	var out []replaced
	for i, p := range list.pairs {
		item := p.value
		if item.kind != mapNode {
			r.problem(item.pos, item.shown(), "replaces[%d] must be a map {name: …}, not %s", i, item.whatText())
			continue
		}
		x, before := replaced{pos: item.pos}, r.wrong
		ok := r.eachKey(item, "an item of replaces", replacesKeys, func(_ string, v *node) {
			x.name, _ = r.text("name", v)
			x.pos = v.pos
		})
		if ok && r.wrong == before { // else it has been reported
			out = append(out, x)
		}
	}
	return out
}

// eachKey calls f for every known key of a map. Keys that are not texts, unknown ones, known ones
// at the wrong level and repeated ones are reported; it then returns false.
func (r *reader) eachKey(n *node, where string, allowed []string, f func(key string, v *node)) (ok bool) {
	ok = true
	for i, p := range n.pairs {
		k := p.key
		switch {
		case k.kind != textNode || k.scalar() != stringScalar:
			r.problem(k.pos, k.shown(), "a key of %s must be a text, not %s (%s)", where, k.what(), k.shown())
			ok = false
		case !contains(allowed, k.text):
			r.wrongKey(k, where, allowed)
			ok = false
		case firstOf(n.pairs, k.text) != i:
			first := n.pairs[firstOf(n.pairs, k.text)].key.pos
			r.problem(k.pos, k.text, "key %s stands twice in %s; the first is at line %d, column %d", k.text, where, first.line, first.column)
			ok = false
		default:
			f(k.text, p.value)
		}
	}
	return ok
}

func (r *reader) wrongKey(k *node, where string, allowed []string) {
	if contains(knownKeys, k.text) {
		r.problem(k.pos, k.text, "key %s has no meaning in %s; %s", k.text, where, allow(allowed))
		return
	}
	hint := didYouMean(k.text, allowed)
	if hint == "" {
		hint = didYouMean(k.text, knownKeys)
	}
	r.problem(k.pos, k.text, "unknown key %s in %s; %s%s", quote(k.text), where, allow(allowed), hint)
}

func firstOf(pairs []pair, key string) int {
	for i, p := range pairs {
		if p.key.text == key {
			return i
		}
	}
	return -1
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// text reads a field of type string. Plain numbers and booleans keep their source text, null is
// the empty text.
func (r *reader) text(field string, v *node) (string, bool) {
	if v.kind != textNode {
		r.problem(v.pos, v.shown(), "%s must be a text, not %s", field, v.what())
		return "", false
	}
	if v.isNull() {
		return "", true
	}
	return v.text, true
}

// boolean reads true, false and the YAML 1.1 words for them, unquoted.
func (r *reader) boolean(field string, v *node) (value, ok bool) {
	if v.isNull() {
		return false, true
	}
	if v.kind == textNode {
		switch b, ok := yamlBool(v.text); {
		case ok && v.plain:
			return b, true
		case ok:
			r.problem(v.pos, v.text, "%s must be true or false without quotes, not the text %s", field, v.shown())
			return false, false
		}
	}
	r.problem(v.pos, v.shown(), "%s must be true or false, not %s (%s)", field, v.what(), v.shown())
	return false, false
}

// uint32 reads a whole number from lowest to 4294967295.
func (r *reader) uint32(field string, v *node, lowest uint32) (uint32, bool) {
	if v.isNull() {
		return 0, true
	}
	if v.kind == textNode {
		n, negative, ok := uint64(0), false, false
		if s := strings.TrimSpace(v.text); s != "" {
			n, negative, ok = yamlInt(s)
		}
		switch {
		case !ok:
		case !v.plain:
			r.problem(v.pos, v.text, "%s must be a number without quotes, not the text %s", field, v.shown())
			return 0, false
		case negative && n != 0, n > math.MaxUint32, uint32(n) < lowest:
			r.problem(v.pos, v.text, "%s is %s; allowed are whole numbers from %d to 4294967295", field, oneLine(v.text), lowest)
			return 0, false
		default:
			return uint32(n), true
		}
	}
	r.problem(v.pos, v.shown(), "%s must be a whole number from %d to 4294967295, not %s (%s)", field, lowest, v.what(), v.shown())
	return 0, false
}
