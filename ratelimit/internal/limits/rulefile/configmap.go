package rulefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

// Unpack finds the rule files in a Kubernetes manifest: the entries *.yaml and *.yml of its ConfigMaps. A file gets the
// name of its entry. passed names the documents and entries that hold no rule files. If the text is no manifest, Unpack
// returns the text itself as the only file.
func Unpack(ctx context.Context, f File) (files []File, passed []string, err error) {
	if !strings.HasPrefix(string(f.Text), "kind:") && !strings.Contains(string(f.Text), "\nkind:") {
		return []File{f}, nil, nil
	}
	maps := 0
	for _, text := range documents(normalizeNewlines(string(f.Text))) {
		root, _, bad := parseYAML(text, directives{}, limits.NewReport(ctx, false))
		if bad != nil {
			return []File{{f.Name, []byte(text)}}, nil, nil // loading the file will report the error
		}
		kind, name := manifest(root)
		switch {
		case root.isNull():
		case kind == "ConfigMap":
			maps++
			found, others := entriesOf(root, text, f.Name+": ConfigMap "+cmp.Or(name, "without name")+", ")
			files, passed = append(files, found...), append(passed, others...)
		case kind == "":
			passed = append(passed, fmt.Sprintf("the document at line %d", root.pos.Line))
		default:
			passed = append(passed, strings.TrimSpace(kind+" "+name))
		}
	}
	switch {
	case maps == 0 && len(passed) == 0:
		return []File{f}, nil, nil
	case len(files) > 0:
		return files, passed, nil
	case maps > 0:
		return nil, nil, errors.New("no entry of its ConfigMaps is named *.yaml or *.yml, so there are no rules")
	}
	return nil, nil, fmt.Errorf("this is no file of rules but a Kubernetes manifest without ConfigMap: %s",
		limits.OneLine(strings.Join(passed, ", ")))
}

// documents splits a text at YAML's document markers. Empty lines take the place of the text before each document, so
// that positions in a document are positions in the whole text.
func documents(text string) (all []string) {
	begin, lines := 0, 0
	cut := func(end, to int) {
		all = append(all, strings.Repeat("\n", lines)+text[begin:end])
		lines += strings.Count(text[begin:to], "\n")
		begin = to
	}
	for at := 0; at < len(text); {
		end := at + strings.IndexByte(text[at:]+"\n", '\n')
		if line := strings.TrimRight(text[at:end], " \t"); line == "---" || strings.HasPrefix(line, "--- #") {
			cut(at, min(end, len(text)))
		}
		at = end + 1
	}
	cut(len(text), len(text))
	return all
}

// manifest returns the kind and name of a Kubernetes object; kind is empty if the document is no Kubernetes object.
func manifest(root *node) (kind, name string) {
	if kind, version := child(root, "kind"), child(root, "apiVersion"); kind != nil && version != nil {
		if metadata := child(root, "metadata"); metadata != nil && child(metadata, "name") != nil {
			name = limits.OneLine(child(metadata, "name").text)
		}
		return limits.OneLine(kind.text), name
	}
	return "", ""
}

// child returns the value of a key in a map; nil if n is no map or lacks the key.
func child(n *node, key string) *node {
	if n.kind != mapNode {
		return nil
	}
	if i := firstOf(n.pairs, key); i >= 0 {
		return n.pairs[i].value
	}
	return nil
}

// entriesOf returns the rule files in the data of a ConfigMap. passed has the entries that hold no rule file.
func entriesOf(root *node, text, prefix string) (files []File, passed []string) {
	data := child(root, "data")
	if data == nil || data.kind != mapNode {
		return nil, nil
	}
	for _, p := range data.pairs {
		name := limits.OneLine(p.key.text)
		if !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
			passed = append(passed, "the entry "+name)
			continue
		}
		content, ok := inPlace(text, p.value.pos)
		if !ok {
			content = p.value.text
		}
		files = append(files, File{prefix + name, []byte(content)})
	}
	return files, passed
}

// inPlace returns the content of the block scalar at a position, with its indentation. It puts as many empty lines
// before the content as there are lines before it in the text, so that a position in the result is also the position in
// the text. ok is false if the value at the position is not a block scalar.
func inPlace(text string, at limits.Pos) (content string, ok bool) {
	begin := lineStart(text, int(at.Line))
	header, rest, _ := strings.Cut(text[begin:], "\n")
	if column := int(at.Column) - 1; column > len(header) || !strings.HasPrefix(header[column:], "|") ||
		strings.ContainsAny(header[column:], "123456789") {
		return "", false
	}
	indent, end := "", 0
	for line := range strings.Lines(rest) {
		filled := strings.TrimLeft(line, " ")
		if strings.TrimSpace(line) != "" {
			if indent == "" {
				indent = line[:len(line)-len(filled)]
			}
			if indent == "" || !strings.HasPrefix(line, indent) {
				break
			}
			if strings.HasPrefix(line[len(indent):], "---") || strings.HasPrefix(line[len(indent):], "%") {
				return "", false // indented, a document marker or directive would have no effect
			}
		}
		end += len(line)
	}
	return strings.Repeat("\n", int(at.Line)) + rest[:end], true
}
