// Package locale has the texts of mails and SMS in every language, both the built-in texts and the operator's, and
// chooses the language of a message. The texts are text templates without markup; the packages that use them add it.
//
// It reads no files and no settings. The name of a language is a key of a map and never part of a path.
package locale

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

//go:embed strings.*.json
var files embed.FS

// builtIns are the languages that are part of the program. Each is parsed when it is first used.
var builtIns = map[string]func() Strings{"en": embedded("en"), "de": embedded("de"), "fr": embedded("fr"),
	"es": embedded("es")}

func embedded(tag string) func() Strings {
	return sync.OnceValue(func() Strings {
		name := "strings." + tag + ".json"
		data, err := files.ReadFile(name)
		if err != nil {
			panic(err) // cannot fail: the file is part of the program
		}
		s, err := Parse(name, data)
		if err != nil {
			panic(err) // cannot fail: tests parse all files
		}
		return s
	})
}

// Language is a language, together with the languages whose texts replace its missing texts.
type Language struct {
	// Tag is the language tag with hyphens (RFC 5646), as the setting spells it.
	Tag    string
	layers []func() Strings // a text comes from the first layer that has it
}

// Catalog holds the languages that messages may have. A nil Catalog has only English.
type Catalog struct {
	first *Language
	byTag map[string]*Language
}

var english = &Language{Tag: "en", layers: []func() Strings{builtIns["en"]}}

// New returns the Catalog of the languages with these tags; the first is the default. own has the operator's texts by
// normalized tag. The error names a tag that is malformed or has no texts.
func New(tags []string, own map[string]Strings) (*Catalog, error) {
	c := &Catalog{byTag: map[string]*Language{}}
	for _, tag := range tags {
		tag = strings.TrimSpace(tag)
		if !ValidTag(tag) {
			return nil, fmt.Errorf("%q is no language tag such as de or pt-BR", tag)
		}
		l := &Language{Tag: strings.ReplaceAll(tag, "_", "-")}
		add := func(tag string) bool {
			before := len(l.layers)
			if s, given := own[tag]; given {
				l.layers = append(l.layers, func() Strings { return s })
			}
			if s := builtIns[tag]; s != nil {
				l.layers = append(l.layers, s)
			}
			return len(l.layers) > before
		}
		normal := Normal(tag)
		language, _, _ := strings.Cut(normal, "-")
		found := add(normal)
		if language != normal {
			found = add(language) || found
		}
		if !found {
			return nil, fmt.Errorf("%s has no strings: want a file strings.%s.json in AUTH_MAILER_TEMPLATE_DIR", tag, tag)
		}
		if language != "en" {
			add("en")
		}
		c.byTag[normal] = l
		if c.first == nil {
			c.first = l
		}
	}
	if c.first == nil {
		return nil, fmt.Errorf("wants one language tag at least, such as en")
	}
	return c, nil
}

// Default returns the language of messages for which none is chosen.
func (c *Catalog) Default() *Language {
	if c == nil {
		return english
	}
	return c.first
}

// Tags returns the normalized tags of all languages.
func (c *Catalog) Tags() []string {
	if c == nil {
		return []string{"en"}
	}
	tags := []string{Normal(c.first.Tag)}
	for tag := range c.byTag {
		if tag != tags[0] {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags[1:])
	return tags
}

// Choose returns the language of the first candidate that the catalog has, or the default.
func (c *Catalog) Choose(candidates ...string) *Language {
	if c != nil && len(c.byTag) > 1 {
		for _, candidate := range candidates {
			for tag := Normal(candidate); tag != ""; tag = tag[:max(0, strings.LastIndexByte(tag, '-'))] {
				if l := c.byTag[tag]; l != nil {
					return l
				}
			}
		}
	}
	return c.Default()
}

// Candidates returns the tags from which the language of a message is chosen, best first: the locale in user_metadata,
// then the languages of the Accept-Language header. It returns nil if the catalog has only one language.
func (c *Catalog) Candidates(metadata json.RawMessage, accept string) []string {
	if c == nil || len(c.byTag) < 2 {
		return nil
	}
	var list []string
	var members map[string]json.RawMessage
	var tag string
	if len(metadata) > 0 && json.Unmarshal(metadata, &members) == nil &&
		json.Unmarshal(members["locale"], &tag) == nil && ValidTag(tag) {
		list = append(list, tag)
	}
	return append(list, ParseAccept(accept)...)
}

// Text renders the text with this key, from the first layer that has it, without line breaks and control characters. If
// it cannot be rendered, the result comes from the next layer, and the error is about the broken text.
func (l *Language) Text(key string, variables map[string]any) (string, error) {
	var bad error
	for _, layer := range l.layers {
		t := layer()[key]
		if t == nil {
			continue
		}
		text, err := t.Render(variables)
		if err == nil {
			return strings.Map(printable, text), bad
		}
		bad = &BrokenError{t.where, err}
	}
	return "", bad
}

// BrokenError is the error of a text that cannot be rendered.
type BrokenError struct {
	// Where is the file and line of the text.
	Where string
	// Err is the cause; it may quote values of variables.
	Err error
}

func (e *BrokenError) Error() string { return e.Where + ": " + e.Err.Error() }

// printable replaces control characters by spaces. It keeps non-breaking spaces, such as those before a colon in
// French.
func printable(r rune) rune {
	if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
		return ' '
	}
	return r
}

// plain does what Text does, but returns no error. It is for texts that cannot be broken, and for texts whose errors
// are reported elsewhere.
func (l *Language) plain(key string, variables map[string]any) string {
	text, _ := l.Text(key, variables)
	return text
}

// Dir returns the direction of writing, ltr or rtl.
func (l *Language) Dir() string {
	if l.plain("dir", nil) == "rtl" {
		return "rtl"
	}
	return "ltr"
}

// SMS returns the built-in text of an SMS with a one-time code.
func (l *Language) SMS(code string) string { return l.plain("sms", map[string]any{"Code": code}) }

// Duration returns a duration in words, in the largest unit that divides it: 90 minutes, not an hour and a half. It
// returns "" for less than a second.
func (l *Language) Duration(d time.Duration) string {
	seconds := int64(d.Round(time.Second) / time.Second)
	for _, unit := range []struct {
		name    string
		seconds int64
	}{{"day", 86400}, {"hour", 3600}, {"minute", 60}, {"second", 1}} {
		if n := seconds / unit.seconds; n > 0 && seconds%unit.seconds == 0 {
			number := "other"
			if n == 1 {
				number = "one"
			}
			return l.plain("units."+unit.name+"."+number, map[string]any{"Count": n})
		}
	}
	return ""
}

// Time returns a time in words, in UTC.
func (l *Language) Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	t = t.UTC()
	month := l.plain("months."+strconv.Itoa(int(t.Month())-1), nil)
	return l.plain("when", map[string]any{"Day": t.Day(), "Month": month, "Year": t.Year(), "Time": t.Format("15:04")})
}
