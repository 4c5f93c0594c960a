package rulefile

import (
	"fmt"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

// directives are the directives before the first --- of a file: %YAML and %TAG.
type directives struct {
	tags map[string]string // prefix of each %TAG handle
}

// readDirectives reads the directives of a file and returns its text with the directives as comments, so that lines
// keep their numbers. YAML reserves other directives: they are ignored, and so is a version that differs only in its
// second number.
func readDirectives(text string) (string, directives, *syntax) {
	var d directives
	var found []int // offsets of the directives
	version := false
	line := int32(0)
	for begin := 0; ; {
		line++
		content, _, more := strings.Cut(text[begin:], "\n")
		fields := strings.Fields(content)
		switch {
		case len(fields) > 0 && content[0] == '%':
			if len(found) == maxMarks {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1},
					fmt.Sprintf("more than %d directives", maxMarks)}
			}
			found = append(found, begin)
			if bad := d.add(fields, &version); bad != "" {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1}, bad}
			}
		case len(fields) > 0 && fields[0][0] != '#':
			if len(found) == 0 {
				return text, d, nil
			}
			if fields[0] != "---" || content[0] != '-' {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1},
					"a line --- must stand between directives and the document"}
			}
			return commented(text, found), d, nil
		}
		if !more {
			if len(found) > 0 {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1}, "a line --- must follow the directives"}
			}
			return text, d, nil
		}
		begin += len(content) + 1
	}
}

// add reads one directive. bad says what is wrong with it.
func (d *directives) add(fields []string, versionSeen *bool) (bad string) {
	for i, f := range fields {
		if f[0] == '#' {
			fields = fields[:i]
			break
		}
	}
	switch fields[0] {
	case "%YAML":
		if *versionSeen {
			return "%YAML stands twice"
		}
		*versionSeen = true
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "1.") {
			return fmt.Sprintf("%s: want %%YAML 1.1 or %%YAML 1.2", limits.OneLine(strings.Join(fields, " ")))
		}
	case "%TAG":
		if len(fields) != 3 || fields[1][0] != '!' || fields[1][len(fields[1])-1] != '!' {
			return fmt.Sprintf("%s: want %%TAG !handle! prefix", limits.OneLine(strings.Join(fields, " ")))
		}
		if _, twice := d.tags[fields[1]]; twice {
			return fmt.Sprintf("%%TAG %s stands twice", limits.OneLine(fields[1]))
		}
		if d.tags == nil {
			d.tags = map[string]string{}
		}
		d.tags[fields[1]] = fields[2]
	}
	return ""
}

// commented returns the text with a # instead of the % at each offset.
func commented(text string, offsets []int) string {
	b := []byte(text)
	for _, at := range offsets {
		b[at] = '#'
	}
	return string(b)
}

// coreTags is the prefix of YAML's own tags, which are written !!str and so on.
const coreTags = "tag:yaml.org,2002:"

// tag returns a tag as !!name if it is one of YAML's own, whatever its handle.
func (d directives) tag(tag string) string {
	if verbatim, ok := strings.CutPrefix(tag, "!<"); ok {
		if name, ok := strings.CutPrefix(strings.TrimSuffix(verbatim, ">"), coreTags); ok {
			return "!!" + name
		}
		return tag
	}
	end := strings.LastIndexByte(tag, '!') + 1
	prefix, known := d.tags[tag[:end]]
	if !known || end == len(tag) {
		return tag
	}
	if name, ok := strings.CutPrefix(prefix+tag[end:], coreTags); ok {
		return "!!" + name
	}
	return prefix + tag[end:]
}
