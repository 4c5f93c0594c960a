// Package settings reads a daemon's configuration from the environment into a struct and reports all errors together:
// the variable, its value (never a secret's), and what would be right.
//
// It first handles old names, secrets from files and misspelled names; an empty variable counts as unset. It reads no
// file but those that a NAME_FILE variable names, keeps no state, and knows no daemon.
package settings

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Options describe a daemon's environment.
//
// Fields of the struct have these tags: `env` and `envDefault` (`envPrefix` on nested structs); `secret:"true"` for
// values that are never shown and may come from NAME_FILE instead; `secret:"url"` for the same where only the
// credentials inside are secret; `min` and `max` in the field's own notation; `oneof:"a b"` for the allowed words, with
// `fold:"true"` in any case. A nested struct may be of another package, which need not import this one.
type Options struct {
	// Aliases are old names. A name that ends in * stands for all names with that beginning.
	Aliases []Alias
	// OldPrefixes are beginnings of names that changed while the rest of the name stayed: Brief summarizes such names
	// in one line. Old may be empty.
	OldPrefixes []Alias
	// ListAll ends that line: how to get the whole list.
	ListAll string
	// Summary replaces the usual text of that line, with the number of names and some of them; "": the usual text.
	Summary string
	// Known are names of this daemon that are not a field. A name may end in *.
	Known []string
	// Unused are names in Known whose old name is not reported as renamed, since neither name has an effect.
	Unused []string
	// Prefixes begin this daemon's names: other names with such a beginning are probably misspelled.
	Prefixes []string
	// Foreign are prefixes of names that belong to other programs although they match Prefixes.
	Foreign []string
	// Seconds: a duration may also be a bare number, of seconds.
	Seconds bool
}

// Alias is an old name with the present name.
type Alias struct {
	Old, New string
	// Note adds to the warning how the setting differs from the old one.
	Note string
}

// Report has the warnings and errors about an environment.
type Report struct {
	// Warnings are all warnings, one line each; see Brief for the log.
	Warnings []string
	// Mistakes are the errors that keep the daemon from starting, one line each.
	Mistakes []string

	env    map[string]string // without empty values, by the present name
	origin map[string]string // the variable's name as the operator wrote it
	fields map[string]Field
	// renamed are the aliases in use that differ only in one of OldPrefixes, by their warnings.
	renamed map[string]Alias
	// notes are the warnings that Brief appends to its summary.
	notes   []string
	options Options
	// fromFile are the secrets that readFile has read.
	fromFile map[string]bool
}

// Load fills into, a pointer to a struct, from environ ("NAME=value", as os.Environ returns it). Fields of invalid
// variables stay zero; call Report.Err before using any field.
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

// Err returns nil, or an error that lists each error on a line of its own.
func (r *Report) Err() error {
	switch len(r.Mistakes) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("settings: %s", r.Mistakes[0])
	}
	return fmt.Errorf("settings: %d errors:\n  %s", len(r.Mistakes), strings.Join(r.Mistakes, "\n  "))
}

// IsSet reports whether the operator gave the variable a value, under any of its names.
func (r *Report) IsSet(name string) bool { return r.env[name] != "" }

// Spelled returns the variable's name as the operator wrote it: an old name, or NAME_FILE; name itself when unset.
func (r *Report) Spelled(name string) string {
	if spelled := r.origin[name]; spelled != "" {
		return spelled
	}
	return name
}

// Renamed reports whether a variable is set under an old name.
func (r *Report) Renamed() bool {
	for name, spelled := range r.origin {
		if r.IsSet(name) && spelled != name && spelled != name+fileSuffix {
			return true
		}
	}
	return false
}

// Text returns the value as the operator gave it; "" when unset.
func (r *Report) Text(name string) string { return r.env[name] }

// Names returns the variables that are set, sorted. A secret from a file is listed only as its NAME_FILE, so that
// nothing is reported twice.
func (r *Report) Names() []string {
	names := slices.Sorted(maps.Keys(r.env))
	return slices.DeleteFunc(names, func(name string) bool { return r.fromFile[name] })
}

// Wrong adds an error about one variable: `NAME="value": text`.
func (r *Report) Wrong(name, format string, args ...any) {
	r.Mistakes = append(r.Mistakes, r.Shown(name)+": "+fmt.Sprintf(format, args...))
}

// Clash adds an error about several variables; the text names all of them.
func (r *Report) Clash(format string, args ...any) {
	r.Mistakes = append(r.Mistakes, fmt.Sprintf(format, args...))
}

// Warn adds a warning.
func (r *Report) Warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// Note adds a warning that also concerns old names: Brief appends it to the line that summarizes them.
func (r *Report) Note(format string, args ...any) {
	r.Warn(format, args...)
	r.notes = append(r.notes, r.Warnings[len(r.Warnings)-1])
}

// Shown returns the variable as the operator wrote it, `NAME="value"`, with its value as a log may show it; the name
// alone where a log may not show the value or a file holds it.
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

// rename moves the value of an old name to the new one.
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

// prefixAlone reports whether an old name differs from the present name only in one of OldPrefixes.
func (o Options) prefixAlone(a Alias) bool {
	return slices.ContainsFunc(o.OldPrefixes, func(p Alias) bool {
		rest, ok := strings.CutPrefix(a.Old, p.Old)
		return ok && a.New == p.New+rest
	})
}

// examples is how many renamed names Brief lists.
const examples = 3

// Brief returns Warnings for a daemon's log: one line summarizes the names of which only the prefix changed, since a
// whole deployment may be full of such names.
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

// fileSuffix ends the name of a variable that names a secret's file.
const fileSuffix = "_FILE"

// secretBytes bounds how much is read from a secret's file.
const secretBytes = 64 << 10

// readFile reads a secret from the file that NAME_FILE names, without its last newline.
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

// readSecret reads little more than secretBytes: the path may lead to something endless.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, secretBytes+3)) // with room for the line's end, which is cut off
}
