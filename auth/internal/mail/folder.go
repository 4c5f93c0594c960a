package mail

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"gatehouse/auth/internal/locale"
)

// mostFiles is the greatest number of files in the folder of templates.
const mostFiles = 500

// Folder has the contents of the folder AUTH_MAILER_TEMPLATE_DIR, which is read once and not for each mail.
type Folder struct {
	// Strings are the operator's translations by normalized language tag.
	Strings map[string]locale.Strings
	// Errors are about files that cannot be used. The built-in texts are used instead.
	Errors []error
	// Warnings are about files that have no effect.
	Warnings []string

	layout *body
	bodies map[Kind]map[string]*body // by normalized language tag; "": a file without a tag
}

// ReadFolder reads the files of a folder. A file may have at most size bytes.
func ReadFolder(dir string, size int64) (*Folder, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	f := &Folder{Strings: map[string]locale.Strings{}, bodies: map[Kind]map[string]*body{}}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		return strings.HasPrefix(e.Name(), ".") || strings.HasSuffix(e.Name(), "~")
	})
	if len(entries) > mostFiles {
		return nil, fmt.Errorf("%s has more than %d files", dir, mostFiles)
	}
	for _, e := range entries {
		f.add(dir, e.Name(), size)
	}
	return f, nil
}

// add reads one file and adds its contents to f. It derives from the file's name what the file is: translations, the
// layout of mails, or the body of a kind of mail.
func (f *Folder) add(dir, name string, size int64) {
	stem, ext := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)
	base, tag, tagged := strings.Cut(stem, ".")
	kind := slices.IndexFunc(Kinds, func(k Kind) bool { return strings.ToLower(k.Setting()) == base })
	words := base == "strings" && tagged && ext == ".json"
	layout := name == "layout.html"
	if !words && !layout && (kind < 0 || ext != ".html") || tagged && !locale.ValidTag(tag) {
		f.Warnings = append(f.Warnings, name+" is no name of a template and has no effect")
		return
	}
	text, err := readFile(filepath.Join(dir, name), size)
	if err == nil && words {
		f.Strings[locale.Normal(tag)], err = locale.Parse(name, text)
		for _, key := range f.Strings[locale.Normal(tag)].Unknown() {
			f.Warnings = append(f.Warnings, name+": no mail has the string "+key)
		}
	} else if err == nil {
		var b *body
		if b, err = parseNamed(name, string(text)); layout {
			f.layout = b
		} else if err == nil {
			if f.bodies[Kinds[kind]] == nil {
				f.bodies[Kinds[kind]] = map[string]*body{}
			}
			f.bodies[Kinds[kind]][locale.Normal(tag)] = b
		}
	}
	if err != nil {
		if !strings.Contains(err.Error(), name) {
			err = fmt.Errorf("%s: %w", name, err)
		}
		f.Errors = append(f.Errors, err)
	}
}

// Check returns warnings about bodies that no mail uses, because a setting overrides the kind of mail or because the
// language is not configured.
func (f *Folder) Check(s *Settings) (warnings []string) {
	for _, kind := range Kinds {
		for tag := range f.bodies[kind] {
			name := strings.ToLower(kind.Setting()) + "." + tag
			switch {
			case s.fixed(kind):
				warnings = append(warnings, fmt.Sprintf("%s.html has no effect: AUTH_MAILER_TEMPLATES_%s or "+
					"AUTH_MAILER_SUBJECTS_%s is set", strings.TrimSuffix(name, "."), kind.Setting(), kind.Setting()))
			case tag != "" && !slices.Contains(s.Languages.Tags(), tag):
				warnings = append(warnings, name+".html has no effect: its language is not in AUTH_SITE_LOCALES")
			}
		}
	}
	slices.Sort(warnings)
	return warnings
}

// body returns the body for a kind of mail in a language, or nil if the folder has none. If the language is the default
// language, a file without a language tag is used, too.
func (f *Folder) body(kind Kind, l *locale.Language, isDefault bool) *body {
	if f == nil {
		return nil
	}
	b := f.bodies[kind][locale.Normal(l.Tag)]
	if b == nil && isDefault {
		b = f.bodies[kind][""]
	}
	return b
}

// readFile reads a template from a file. It fails if the file has more than size bytes.
func readFile(path string, size int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would block
		return nil, errors.New("it is no file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readTemplate(file, size)
}

// readTemplate reads a template. It fails if the template has more than size bytes, is empty or is not UTF-8.
func readTemplate(from io.Reader, size int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > size {
		return nil, fmt.Errorf("it has more than %d bytes (AUTH_MAILER_TEMPLATE_MAX_SIZE)", size)
	}
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if len(bytes.TrimSpace(text)) == 0 || !utf8.Valid(text) {
		return nil, errors.New("it is empty or not UTF-8")
	}
	return text, nil
}
