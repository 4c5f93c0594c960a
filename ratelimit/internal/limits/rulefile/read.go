package rulefile

import (
	"cmp"
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

// These are the keys that are known at each level of a rule file. knownKeys has all of them, to suggest the nearest key
// and to distinguish an unknown key from a known key in the wrong place.
var (
	rootKeys  = []string{"domain", "descriptors", "on_store_failure"}
	entryKeys = slices.Concat([]string{"key", "value"}, listKeys, []string{"rate_limit", "rate_limits", "descriptors"},
		limits.SwitchNames(), []string{"metadata"})
	limitKeys = []string{"unit", "requests_per_unit", "unit_multiplier", "algorithm", "burst", "calendar", "unlimited",
		"name", "replaces"}
	itemKeys = []string{"unit", "requests_per_unit", "unit_multiplier", "algorithm", "burst", "calendar", "shadow_mode",
		"name", "replaces"}
	replacesKeys = []string{"name"}
	knownKeys    = slices.Concat(rootKeys, entryKeys, limitKeys, lengthKeys)
)

// reader turns the nodes of one file into a document and reports errors of form: keys that are unknown or in the wrong
// place, values of a wrong type, metadata that JSON cannot represent. It does not check what rules mean.
type reader struct {
	file   string
	domain string
	path   []string // labels of the entries in which the present entry is nested
	wrong  int      // number of problems so far
	report *limits.Report
}

func (r *reader) problem(p limits.Pos, text, format string, args ...any) {
	r.wrong++
	r.report.Problem(r.at(p), text, format, args...)
}

func (r *reader) at(p limits.Pos) limits.Place {
	return limits.Place{File: r.file, Pos: p, Domain: r.domain, Path: strings.Join(r.path, ".")}
}

// readDocument turns the root node of a file into a document.
func readDocument(file string, root *node, rep *limits.Report) limits.Document {
	r := &reader{file: file, report: rep}
	return r.document(root)
}

// streamDocument reads a file entry by entry, without holding all its nodes in memory. It gives up (ok is false) if the
// file is not plain YAML, and at the first problem: the caller then uses readDocument, which describes problems better.
func streamDocument(file, text string, rep *limits.Report) (doc limits.Document, ok bool) {
	r := &reader{file: file, report: rep.Another()}
	var list entryChunks
	index := 0
	root, _ := readPlain(text, func(item *node) bool {
		list.last = r.item(list.last, index, item)
		list.grow()
		index++
		return r.wrong == 0 && rep.Step()
	})
	if root == nil || r.wrong > 0 {
		return limits.Document{}, false
	}
	doc = r.document(root)
	if index > 0 {
		doc.Entries = list.joined(rep)
	}
	return doc, r.wrong == 0
}

// entryChunks gathers entries in chunks of fixed size. With a single slice, append would copy 25 MB at once for 100,000
// rules, and requests would have to wait for the processor during the copy.
type entryChunks struct {
	full [][]limits.Entry
	last []limits.Entry
	size int // number of entries in all chunks of full
}

const entriesPerChunk = 256

// grow begins a new chunk if the last chunk is full.
func (l *entryChunks) grow() {
	if len(l.last) == entriesPerChunk {
		l.full, l.size = append(l.full, l.last), l.size+len(l.last)
		l.last = make([]limits.Entry, 0, entriesPerChunk)
	}
}

// joined returns all entries as one slice, and releases the chunks.
func (l *entryChunks) joined(rep *limits.Report) []limits.Entry {
	if len(l.full) == 0 {
		return l.last
	}
	out := make([]limits.Entry, 0, l.size+len(l.last))
	for i, chunk := range l.full {
		out = append(out, chunk...)
		l.full[i] = nil
		rep.Step()
	}
	return append(out, l.last...)
}

func (r *reader) document(root *node) limits.Document {
	doc := limits.Document{File: r.file, Pos: root.pos}
	if root.isNull() {
		return doc // an empty file: the caller reports the missing domain
	}
	if root.kind != mapNode {
		hint := slipIn(root)
		if root.kind == listNode {
			hint = "; write domain: and descriptors: in the lines above"
		}
		r.problem(root.pos, root.shown(), "the file must be a map with %s, not %s%s", limits.OrList(rootKeys),
			root.whatText(), hint)
		doc.Unreadable = true
		return doc
	}
	if kind, _ := manifest(root); kind != "" && child(root, "domain") == nil {
		r.problem(root.pos, kind, "this is a Kubernetes %s, not a file of rules; name it as a file to have check look into "+
			"a ConfigMap, or write its entry into a file", kind)
		doc.Unreadable = true
		return doc
	}
	for _, p := range root.pairs { // look for the domain first, so that all other messages can name it
		if p.key.text == "domain" && p.value.kind == textNode && !p.value.isNull() {
			r.domain = p.value.text
		}
	}
	r.eachKey(root, "the file", rootKeys, func(key string, v *node) {
		switch key {
		case "domain":
			var ok bool
			doc.Domain, ok = r.text(key, v)
			doc.Pos, doc.Unreadable = v.pos, doc.Unreadable || !ok
		case "on_store_failure":
			doc.FailurePos = v.pos
			doc.Failure = r.failureMode(v)
		case "descriptors":
			doc.Entries = r.entries(v)
		}
	})
	return doc
}

func (r *reader) failureMode(v *node) limits.FailureMode {
	if v.isNull() {
		return limits.FailureUnset
	}
	s, ok := r.text("on_store_failure", v)
	if !ok {
		return limits.FailureUnset
	}
	mode, err := limits.ParseFailureMode(s)
	if err != nil || mode == limits.FailureUnset {
		r.problem(v.pos, s, "on_store_failure %s is unknown%s", limits.Quote(s),
			limits.Choices(s, limits.FailureWords(), limits.FailureWords()))
	}
	return mode
}

// entries reads a descriptors list: the entries nested in an entry, or at the root of a file.
func (r *reader) entries(list *node) []limits.Entry {
	if list.isNull() {
		return nil
	}
	if list.kind != listNode {
		hint := ""
		if list.kind == mapNode {
			hint = "; begin each item with a dash, such as - key: user"
		}
		r.problem(list.pos, list.shown(), "descriptors must be a list, not %s%s", list.whatText(), hint)
		return nil
	}
	out := make([]limits.Entry, 0, len(list.pairs))
	for i, p := range list.pairs {
		if !r.report.Step() {
			return out
		}
		out = r.item(out, i, p.value)
	}
	return out
}

// item reads one item of a descriptors list and appends it to list.
func (r *reader) item(list []limits.Entry, index int, item *node) []limits.Entry {
	if item.kind != mapNode {
		r.problem(item.pos, item.shown(), "descriptors[%d] must be a map with a key, not %s%s", index, item.whatText(),
			slipIn(item))
		return list
	}
	return append(list, r.entry(index, item))
}

func (r *reader) entry(index int, n *node) limits.Entry {
	e := limits.Entry{File: r.file, Index: index, Pos: n.pos}
	r.path = append(r.path, entryLabel(index, n))
	r.exclude(n, "rate_limit", "rate_limits")
	r.eachKey(n, "a descriptor", entryKeys, func(key string, v *node) {
		switch key {
		case "key":
			s, ok := r.text(key, v)
			e.Key, e.KeyUnreadable = s, !ok
		case "value":
			e.Value, _ = r.text(key, v)
			e.ValuePos = v.pos
		case "rate_limit":
			e.Limit = r.limit(v)
		case "rate_limits":
			if e.List = r.limitList(v); e.List != nil {
				e.Limit = &e.List.Items[0]
			}
		case "descriptors":
			e.Children = r.entries(v)
		case "metadata":
			e.Metadata = r.metadata(v)
		case "values", "cidr", "not_cidr", "prefix_length", "group":
			r.listField(&e, key, v)
		default:
			value, pos := e.Switch(key)
			*value, _ = r.boolean(key, v)
			*pos = v.pos
		}
	})
	if e.Match != nil && r.excluded(n) {
		e.Match.Unreadable = true
	}
	r.path = r.path[:len(r.path)-1]
	return e
}

// entryLabel returns the label by which messages name an entry before it is read: key_value, or its index if it has no
// key.
func entryLabel(index int, n *node) string {
	var key, value, list, group string
	for _, p := range n.pairs {
		if items := p.value.pairs; p.value.kind == listNode && len(items) > 0 {
			list = listLabel(p.key.text, items[0].value.text, len(items), list)
		}
		if p.value.kind != textNode || p.value.isNull() {
			continue
		}
		switch p.key.text {
		case "key":
			key = p.value.text
		case "value":
			value = p.value.text
		case "group":
			group = p.value.text
		}
	}
	if group != "" && list != "" {
		list = group
	}
	return limits.Label(index, key, cmp.Or(value, list))
}

func (r *reader) replaces(list *node) []limits.Replaced {
	if list.isNull() {
		return nil
	}
	if list.kind != listNode {
		r.problem(list.pos, list.shown(), "replaces must be a list of {name: …}, not %s", list.whatText())
		return nil
	}
	var out []limits.Replaced
	for i, p := range list.pairs {
		item := p.value
		if item.kind != mapNode {
			r.problem(item.pos, item.shown(), "replaces[%d] must be a map {name: …}, not %s", i, item.whatText())
			continue
		}
		x, before := limits.Replaced{Pos: item.pos}, r.wrong
		ok := r.eachKey(item, "an item of replaces", replacesKeys, func(_ string, v *node) {
			x.Name, _ = r.text("name", v)
			x.Pos = v.pos
		})
		if ok && r.wrong == before { // otherwise the item has an error, which has been reported
			out = append(out, x)
		}
	}
	return out
}

// eachKey calls f for every key of a map that is in allowed. It reports keys that are not texts, unknown keys, keys
// that belong to another level and repeated keys; ok is then false.
func (r *reader) eachKey(n *node, where string, allowed []string, f func(key string, v *node)) (ok bool) {
	ok = true
	for i, p := range n.pairs {
		k := p.key
		switch {
		case k.kind != textNode || k.scalar() != stringScalar:
			r.problem(k.pos, k.shown(), "a key of %s must be a text, not %s (%s)", where, k.what(), k.shown())
			ok = false
		case !slices.Contains(allowed, k.text):
			r.wrongKey(k, where, allowed)
			ok = false
		case firstOf(n.pairs, k.text) != i:
			first := n.pairs[firstOf(n.pairs, k.text)].key.pos
			r.problem(k.pos, k.text, "key %s stands twice in %s; the first is at line %d, column %d", k.text, where,
				first.Line, first.Column)
			ok = false
		default:
			f(k.text, p.value)
		}
	}
	return ok
}

func (r *reader) wrongKey(k *node, where string, allowed []string) {
	if k.text == "unlimited" && strings.HasPrefix(where, "rate_limits[") {
		r.problem(k.pos, k.text, "unlimited has no meaning in rate_limits; write rate_limit: {unlimited: true}")
		return
	}
	if slices.Contains(knownKeys, k.text) {
		r.problem(k.pos, k.text, "key %s has no meaning in %s, but in %s; %s", k.text, where, home(k.text),
			limits.Allow(allowed))
		return
	}
	if dashed, ok := strings.CutPrefix(k.text, "-"); ok && slices.Contains(knownKeys, dashed) {
		r.problem(k.pos, k.text, "a blank is missing after the dash; write - %s:", dashed)
		return
	}
	if strings.ContainsAny(k.text, "\u00a0\u200b\u3000") {
		r.problem(k.pos, k.text, "key %s has blanks that are none in YAML, such as no-break spaces; write plain ones",
			limits.Quote(k.text))
		return
	}
	known := allowed
	if limits.DidYouMean(k.text, allowed) == "" {
		known = knownKeys
	}
	r.problem(k.pos, k.text, "unknown key %s in %s%s", limits.Quote(k.text), where,
		limits.Choices(k.text, known, allowed))
}

// home returns the words that say where a known key belongs.
func home(key string) string {
	switch {
	case slices.Contains(rootKeys, key):
		return "the file"
	case slices.Contains(entryKeys, key):
		return "a descriptor"
	case slices.Contains(limitKeys, key):
		return "rate_limit"
	}
	return "prefix_length"
}

func firstOf(pairs []pair, key string) int {
	return slices.IndexFunc(pairs, func(p pair) bool { return p.key.text == key })
}

// text reads a field whose value is a string. A number or boolean without quotes is taken as it is written; null is the
// empty text.
func (r *reader) text(field string, v *node) (string, bool) {
	if v.kind != textNode {
		r.problem(v.pos, v.shown(), "%s must be a text, not %s", field, v.what())
		return "", false
	}
	if v.isNull() {
		return "", true
	}
	// A dash that is indented too far continues the text of the line before it.
	if v.plain && strings.Contains(v.text, " - key:") {
		r.report.Warning(r.at(v.pos), v.text, "%s is %s, with the list after it; write descriptors: in a line "+
			"between them", field, limits.Quote(v.text))
	}
	return v.text, true
}

// boolean reads a field whose value is true or false, or one of the YAML 1.1 words for them, without quotes.
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

// number reads a field whose value is an integer from lowest to highest.
func (r *reader) number(field string, v *node, lowest, highest uint32) (uint32, bool) {
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
		case negative && n != 0, n > uint64(highest), uint32(n) < lowest:
			r.problem(v.pos, v.text, "%s is %s; allowed are whole numbers from %d to %d", field, limits.OneLine(v.text),
				lowest, highest)
			return 0, false
		default:
			return uint32(n), true
		}
	}
	r.problem(v.pos, v.shown(), "%s must be a whole number from %d to %d, not %s (%s)", field, lowest, highest,
		v.what(), v.shown())
	return 0, false
}
