// Package settings reads a daemon's configuration from environment variables into a struct. It reports all errors
// together, each with the variable, its value (unless it is secret), and what would be right.
//
// Before it fills the struct, it handles old names, secrets in files and misspelled names. An empty variable counts as
// unset. It reads no files except those that NAME_FILE variables name, keeps no state, and does not know the daemons.
package settings

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Options describe the environment variables of a daemon.
//
// Fields of the settings struct have these tags. `env` and `envDefault` name the variable and its default (`envPrefix`
// on nested structs). `secret:"true"` marks values that are never shown and may come from NAME_FILE instead;
// `secret:"url"` does the same for URLs, of which only the credentials are hidden. `min` and `max` are bounds, written
// as values of the field. `oneof:"a b"` lists the allowed words; with `fold:"true"`, case is ignored. A nested struct
// may be of another package, which need not import this one.
type Options struct {
	// Aliases are old names. An old name that ends in * stands for all names with that beginning.
	Aliases []Alias
	// OldPrefixes are prefixes of names that have changed while the rest of the name stayed. Brief summarizes variables
	// with such names in one line. Old may be empty.
	OldPrefixes []Alias
	// ListAll is the end of the line that summarizes variables with old prefixes: it says how to get the whole list.
	ListAll string
	// Summary replaces the usual text of the line that summarizes variables with old prefixes. It is a format with the
	// number of such variables and some of their names. "" stands for the usual text.
	Summary string
	// Known are names of variables that this daemon reads, but that are not fields of the struct. A name may end in *.
	Known []string
	// Unused are names in Known that have no effect, so an old name for one of them is not reported as renamed.
	Unused []string
	// Prefixes are the beginnings of this daemon's names. Other variables that begin like this are probably misspelled.
	Prefixes []string
	// Foreign are prefixes of names that belong to other programs although they begin with one of Prefixes.
	Foreign []string
	// Seconds is set if a duration may also be a bare number, in seconds.
	Seconds bool
}

// Alias is an old name with the current name.
type Alias struct {
	Old, New string
	// Note is added to the warning about the old name, and says how the setting differs from the old one.
	Note string
}

// Report holds the warnings and errors about an environment.
type Report struct {
	// Warnings are all warnings, one line each. For a log, Brief is shorter.
	Warnings []string
	// Mistakes are the errors that keep the daemon from starting, one line each.
	Mistakes []string

	env    map[string]string // values by current name, without empty values
	origin map[string]string // names as the operator wrote them, by current name
	fields map[string]Field
	// renamed maps warnings to the aliases in use that differ from the current name only in one of OldPrefixes.
	renamed map[string]Alias
	// notes are the warnings that Brief appends to its summary.
	notes   []string
	options Options
	// fromFile has the names of the secrets that were read from files.
	fromFile map[string]bool
}

// Load fills the struct to which into points from environ, which has items NAME=value, as os.Environ returns them.
// Fields of invalid variables stay zero, so call Report.Err before using any field.
func Load(into any, environ []string, o Options) *Report {
	r := &Report{env: map[string]string{}, origin: map[string]string{}, fields: map[string]Field{},
		renamed: map[string]Alias{}, options: o, fromFile: map[string]bool{}}
	fields, err := Fields(into)
	if err != nil {
		panic(err) // a bug in the struct
	}
	for _, f := range fields {
		r.fields[f.Name] = f
	}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && name != "" && value != "" {
			r.env[name] = value
			r.origin[name] = name
		}
	}
	for _, a := range o.Aliases {
		r.rename(a)
	}
	for _, f := range fields {
		if f.Secret {
			r.readFile(f.Name)
		}
	}
	r.unknown(fields, o)
	r.fill(into, o.Seconds)
	r.check(into)
	return r
}

// Err returns nil, or one error that lists all errors, one per line.
func (r *Report) Err() error {
	switch len(r.Mistakes) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("settings: %s", r.Mistakes[0])
	}
	return fmt.Errorf("settings: %d errors:\n  %s", len(r.Mistakes), strings.Join(r.Mistakes, "\n  "))
}

// IsSet reports whether the operator has set the variable, under any of its names.
func (r *Report) IsSet(name string) bool { return r.env[name] != "" }

// Spelled returns the variable's name as the operator wrote it, possibly an old name or NAME_FILE. If the variable is
// unset, it returns name.
func (r *Report) Spelled(name string) string {
	if spelled := r.origin[name]; spelled != "" {
		return spelled
	}
	return name
}

// Renamed reports whether any variable is set under an old name.
func (r *Report) Renamed() bool {
	for name, spelled := range r.origin {
		if r.IsSet(name) && spelled != name && spelled != name+fileSuffix {
			return true
		}
	}
	return false
}

// Text returns the variable's value as the operator wrote it; "" if it is unset.
func (r *Report) Text(name string) string { return r.env[name] }

// Names returns the names of the variables that are set, sorted. For a secret from a file, it has only NAME_FILE, so
// that nothing is reported twice.
func (r *Report) Names() []string {
	names := slices.Sorted(maps.Keys(r.env))
	return slices.DeleteFunc(names, func(name string) bool { return r.fromFile[name] })
}

// Wrong adds an error about one variable: `NAME="value": text`.
func (r *Report) Wrong(name, format string, args ...any) {
	r.Mistakes = append(r.Mistakes, r.Shown(name)+": "+fmt.Sprintf(format, args...))
}

// Clash adds an error about several variables, all of which the text must name.
func (r *Report) Clash(format string, args ...any) {
	r.Mistakes = append(r.Mistakes, fmt.Sprintf(format, args...))
}

// Warn adds a warning.
func (r *Report) Warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// Note adds a warning that also concerns variables with old names: Brief appends it to the line that summarizes these
// variables.
func (r *Report) Note(format string, args ...any) {
	r.Warn(format, args...)
	r.notes = append(r.notes, r.Warnings[len(r.Warnings)-1])
}

// Shown returns the variable for a log, as the operator wrote it: `NAME="value"`, or only the name if the value must
// not be logged or is in a file.
func (r *Report) Shown(name string) string {
	spelled, f := r.Spelled(name), r.fields[name]
	value, set := r.env[name]
	if !set {
		value = f.Default
	}
	switch {
	case f.Secret && !f.URL, r.fromFile[name]:
		return spelled
	case f.Secret:
		value = MaskURL(value)
	case value == "":
		return spelled
	}
	return fmt.Sprintf("%s=%q", spelled, short(value))
}

func short(v string) string {
	if len(v) > 120 {
		return v[:120] + "…"
	}
	return v
}

// rename moves the value of an old name to the current name.
func (r *Report) rename(a Alias) {
	if prefix, ok := strings.CutSuffix(a.Old, "*"); ok {
		for _, name := range r.Names() {
			if rest, ok := strings.CutPrefix(name, prefix); ok && r.origin[name] == name {
				r.rename(Alias{Old: name, New: strings.TrimSuffix(a.New, "*") + rest, Note: a.Note})
			}
		}
		return
	}
	if r.fields[a.New].Secret && !strings.HasSuffix(a.New, fileSuffix) {
		r.rename(Alias{Old: a.Old + fileSuffix, New: a.New + fileSuffix, Note: a.Note})
	}
	old, ok := r.env[a.Old]
	if !ok {
		return
	}
	if now, both := r.env[a.New]; both && now != old {
		r.Clash("%s and %s are both set and differ: %s is the old name of %s, remove it", a.Old, r.origin[a.New], a.Old,
			a.New)
		delete(r.env, a.Old)
		return
	} else if !both {
		r.env[a.New], r.origin[a.New] = old, a.Old
	}
	delete(r.env, a.Old)
	if Matches(a.New, r.options.Unused) {
		return
	}
	note := ""
	if a.Note != "" {
		note = "; " + a.Note
	}
	warning := fmt.Sprintf("%s is an old name; it is called %s now%s", a.Old, a.New, note)
	if note == "" && r.options.prefixAlone(a) {
		r.renamed[warning] = a
	}
	r.Warnings = append(r.Warnings, warning)
}

// prefixAlone reports whether an old name differs from its current name only in one of OldPrefixes.
func (o Options) prefixAlone(a Alias) bool {
	return slices.ContainsFunc(o.OldPrefixes, func(p Alias) bool {
		rest, ok := strings.CutPrefix(a.Old, p.Old)
		return ok && a.New == p.New+rest
	})
}

// examples is how many old names the summary of Brief lists.
const examples = 3

// Brief returns the Warnings for a daemon's log. One line summarizes the variables whose names have changed only in the
// prefix, since a whole deployment may be full of such names.
func (r *Report) Brief() []string {
	if len(r.renamed) < 2 {
		return r.Warnings
	}
	var brief, given, old []string
	at := -1
	for _, w := range r.Warnings {
		if slices.Contains(r.notes, w) {
			continue
		}
		a, renamed := r.renamed[w]
		if !renamed {
			brief = append(brief, w)
			continue
		}
		if at < 0 {
			at = len(brief)
			brief = append(brief, "")
		}
		if len(given) < examples {
			given = append(given, a.Old+" is "+a.New+" now")
			old = append(old, a.Old)
		}
	}
	summary := fmt.Sprintf("%d settings have old names, whose prefix alone changed: %s", len(r.renamed),
		strings.Join(given, ", "))
	if len(r.renamed) > examples {
		summary += ", …; " + r.options.ListAll
		old = append(old, "…")
	}
	if r.options.Summary != "" {
		summary = fmt.Sprintf(r.options.Summary, len(r.renamed), strings.Join(old, ", "))
	}
	brief[at] = strings.Join(append([]string{summary}, r.notes...), "; ")
	return brief
}

// fileSuffix is the end of the names of variables that name a file with a secret.
const fileSuffix = "_FILE"

// secretBytes is the maximum size in bytes of a file with a secret.
const secretBytes = 64 << 10

// readFile reads a secret from the file that NAME_FILE names, and drops the last newline.
func (r *Report) readFile(name string) {
	path, ok := r.env[name+fileSuffix]
	if !ok {
		return
	}
	spelled := r.origin[name+fileSuffix]
	if r.IsSet(name) {
		r.Clash("%s and %s are both set: keep one", r.origin[name], spelled)
		return
	}
	b, err := readSecret(path)
	if err != nil {
		r.Clash("%s: %v", spelled, err)
		return
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case text == "":
		r.Clash("%s: %s is empty", spelled, path)
	case len(text) > secretBytes:
		r.Clash("%s: %s is larger than %d bytes", spelled, path, secretBytes)
	default:
		r.env[name], r.origin[name], r.fromFile[name] = text, spelled, true
	}
}

// readSecret reads little more than secretBytes, since the path may lead to an endless file.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, secretBytes+3)) // with room for the last newline, which is cut off
}
