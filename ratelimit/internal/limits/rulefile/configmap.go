package rulefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

// Unpack finds the files of rules in a Kubernetes manifest: the entries *.yaml and *.yml of its ConfigMaps, named after
// them. passed are the documents and entries that are none. A text that is no manifest is the only file of the result.
func Unpack(ctx context.Context, f File) (files []File, passed []string, err error) {
	if !strings.HasPrefix(string(f.Text), "kind:") && !strings.Contains(string(f.Text), "\nkind:") {
		return []File{f}, nil, nil
	}
	maps := 0
	for _, text := range documents(normalizeNewlines(string(f.Text))) {
		root, _, bad := parseYAML(text, directives{}, limits.NewReport(ctx, false))
		if bad != nil {
			return []File{{f.Name, []byte(text)}}, nil, nil // loading it describes what is wrong
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

// documents cuts a text at the markers of YAML. Each document has the lines before it as empty ones, so that positions
// are those of the whole text.
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

// manifest is what an object of Kubernetes says it is; kind is empty for any other text.
func manifest(root *node) (kind, name string) {
	if kind, version := child(root, "kind"), child(root, "apiVersion"); kind != nil && version != nil {
		if metadata := child(root, "metadata"); metadata != nil && child(metadata, "name") != nil {
			name = limits.OneLine(child(metadata, "name").text)
		}
		return limits.OneLine(kind.text), name
	}
	return "", ""
}

// child is the value of a key; nil without it.
func child(n *node, key string) *node {
	if n.kind != mapNode {
		return nil
	}
	if i := firstOf(n.pairs, key); i >= 0 {
		return n.pairs[i].value
	}
	return nil
}

// entriesOf are the files in the data of a ConfigMap.
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

// inPlace is the content of a block scalar that begins at a position, with its indentation and with as many empty lines
// before it as stand there, so that positions in it are those of the text. It is not ok for any other value.
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
				return "", false // markers and directives are none when they are indented
			}
		}
		end += len(line)
	}
	return strings.Repeat("\n", int(at.Line)) + rest[:end], true
}
