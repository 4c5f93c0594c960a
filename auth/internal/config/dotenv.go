package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// dotenvFile is the settings file that is read from the working directory unless another file is named.
const dotenvFile = ".env"

// withFile adds to environ the variables of the settings file that environ does not have, so that the environment takes
// precedence. An empty variable counts as missing. If name is "", the file may be missing.
func withFile(environ []string, name string) ([]string, error) {
	path := cmp.Or(name, dotenvFile)
	text, err := os.ReadFile(path)
	if name == "" && errors.Is(err, fs.ErrNotExist) {
		return environ, nil
	}
	if err != nil {
		return nil, fmt.Errorf("settings file: %w", err)
	}
	vars, err := parseDotenv(string(text))
	if err != nil {
		return nil, fmt.Errorf("settings file %s: %w", path, err)
	}
	taken := map[string]bool{}
	for _, e := range environ {
		if k, v, _ := strings.Cut(e, "="); v != "" {
			taken[k] = true
		}
	}
	all := slices.Clone(environ)
	for _, v := range vars {
		if !taken[v[0]] {
			all = append(all, v[0]+"="+v[1])
		}
	}
	return all, nil
}

// ExportStandard copies variables of the settings file that libraries read into the process's environment: the database
// driver reads PGSSLROOTCERT and the like, telemetry reads OTEL_EXPORTER_OTLP_ENDPOINT.
func ExportStandard(environ []string, file string) error {
	all, err := withFile(environ, file)
	for _, e := range all {
		name, value, _ := strings.Cut(e, "=")
		if (strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "OTEL_")) && os.Getenv(name) == "" {
			err = errors.Join(err, os.Setenv(name, value))
		}
	}
	return err
}

// parseDotenv parses lines of KEY=value or KEY: value, with comments and quotes, but without expansion of variables. If
// a key is repeated, the last value counts. Errors name the line and never show a value.
func parseDotenv(text string) (vars [][2]string, err error) {
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, errors.New("is not text")
	}
	p := &dotenv{rest: strings.ReplaceAll(text, "\r\n", "\n"), line: 1}
	for p.rest != "" {
		began := p.line
		key, value, ok, err := p.next()
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", began, err)
		}
		if ok {
			vars = append(vars, [2]string{key, value})
		}
	}
	return vars, nil
}

// These match the beginning of a line: an optional "export", and the name with its separator.
var (
	export     = regexp.MustCompile(`^[ \t]*(?:export[ \t]+)?`)
	assignment = regexp.MustCompile(`^([A-Za-z0-9_.]+)[ \t]*([=:]?)[ \t]*`)
)

// dotenv is the part of a settings file that is still to be read.
type dotenv struct {
	rest string
	line int
}

// next reads one line, or several lines if a quoted value has several. ok is false for an empty line and for a comment.
func (p *dotenv) next() (key, value string, ok bool, err error) {
	line, _, _ := strings.Cut(p.rest, "\n")
	if text := strings.TrimLeft(line, " \t"); strings.TrimSpace(text) == "" || text[0] == '#' {
		p.skip(len(line))
		return "", "", false, nil
	}
	begin := len(export.FindString(line))
	name := assignment.FindStringSubmatch(line[begin:])
	switch {
	case name == nil, name[1] == line[begin:]:
		return "", "", false, errors.New("is not NAME=value")
	case name[2] == "":
		return "", "", false, fmt.Errorf("no = behind %s", name[1])
	}
	key, begin = name[1], begin+len(name[0])
	after := line[begin:]
	p.rest = p.rest[begin:]
	if after != "" && (after[0] == '"' || after[0] == '\'') {
		if value, err = p.quoted(after[0]); err != nil {
			return "", "", false, fmt.Errorf("%s: %w", key, err)
		}
		tail, _, _ := strings.Cut(p.rest, "\n")
		if t := strings.TrimSpace(tail); t != "" && t[0] != '#' {
			return "", "", false, fmt.Errorf("%s: something follows the closing quote", key)
		}
		p.skip(len(tail))
		return key, value, true, nil
	}
	p.skip(len(after))
	for i := range len(after) { // a comment needs a space before it, so a#b is a value
		if after[i] == '#' && (i == 0 || after[i-1] == ' ' || after[i-1] == '\t') {
			after = after[:i]
			break
		}
	}
	return key, strings.TrimSpace(after), true, nil
}

// skip drops n bytes and the line break after them.
func (p *dotenv) skip(n int) {
	p.rest = strings.TrimPrefix(p.rest[n:], "\n")
	p.line++
}

// quoted reads a value up to its closing quote. In single quotes, all text is literal. In double quotes, a backslash
// escapes n, r, a quote, a dollar sign and itself; before any other character it is literal.
func (p *dotenv) quoted(quote byte) (string, error) {
	var b strings.Builder
	for i := 1; i < len(p.rest); i++ {
		c := p.rest[i]
		switch {
		case c == quote:
			p.rest = p.rest[i+1:]
			return b.String(), nil
		case c == '\\' && quote == '"' && i+1 < len(p.rest):
			i++
			switch e := p.rest[i]; e {
			case 'n':
				b.WriteByte('\n')
			case 'r':
				b.WriteByte('\r')
			case '"', '\\', '$':
				b.WriteByte(e)
			default:
				b.WriteByte('\\')
				i--
			}
		default:
			if c == '\n' {
				p.line++
			}
			b.WriteByte(c)
		}
	}
	return "", errors.New("the quote is not closed")
}
