package password

import (
	_ "embed" // embeds the list of common passwords
	"fmt"
	"strings"
	"unicode/utf8"
)

// minLength is the lowest minimum length that the setting can have; lower values count as minLength.
const minLength = 6

// These are the reasons why a password is weak, in the order in which they are listed.
const (
	ReasonLength     = "length"
	ReasonCharacters = "characters"
	ReasonPwned      = "pwned"
)

// Policy holds the rules for new passwords. It never changes.
type Policy struct {
	min    int
	sets   []string
	common bool
}

// NewPolicy returns the policy for PASSWORD_MIN_LENGTH (characters, at least 6), PASSWORD_REQUIRED_CHARACTERS (sets
// separated by ':'; "\:" is a colon and "\\" a backslash inside a set; empty sets are ignored) and
// AUTH_PASSWORD_COMMON_REFUSED.
func NewPolicy(min int, required string, refuseCommon bool) *Policy {
	return &Policy{min: max(min, minLength), sets: parseSets(required), common: refuseCommon}
}

func parseSets(text string) []string {
	var sets []string
	var set strings.Builder
	end := func() {
		if set.Len() > 0 {
			sets = append(sets, set.String())
		}
		set.Reset()
	}
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == ':' || text[i+1] == '\\'):
			i++
			set.WriteByte(text[i])
		case text[i] == ':':
			end()
		default:
			set.WriteByte(text[i])
		}
	}
	end()
	return sets
}

// Weak says why a password is weak: Reasons for programs, Message for people.
type Weak struct {
	Reasons []string
	Message string
}

// Check returns why a password is weak; nil if it is not weak. It does not check MaxBytes, which is a separate rule
// with a refusal of its own.
func (p *Policy) Check(password string) *Weak {
	var w Weak
	var texts []string
	add := func(reason, text string) {
		w.Reasons = append(w.Reasons, reason)
		texts = append(texts, text)
	}
	if utf8.RuneCountInString(password) < p.min {
		add(ReasonLength, fmt.Sprintf("Password should be at least %d characters.", p.min))
	}
	for _, set := range p.sets {
		if !strings.ContainsAny(password, set) {
			add(ReasonCharacters, "Password should contain at least one character of each: "+
				strings.Join(p.sets, ", ")+".")
			break
		}
	}
	if p.common && isCommon(password) {
		add(ReasonPwned, "Password is known to be weak and easy to guess, please choose a different one.")
	}
	if w.Reasons == nil {
		return nil
	}
	w.Message = strings.Join(texts, " ")
	return &w
}

//go:embed common.txt
var common string // one password per line, sorted, in lower case; see the file NOTICE

// isCommon looks up the password in the list of common passwords, ignoring case. It searches the list's sorted text
// directly, since an index would be as large as the text.
func isCommon(password string) bool {
	want := strings.ToLower(password)
	low, high := 0, len(common) // both are at the beginning of a line, or at the end of the text
	for low < high {
		start := low + strings.LastIndexByte(common[low:low+(high-low)/2], '\n') + 1
		end := start + strings.IndexByte(common[start:], '\n')
		switch strings.Compare(common[start:end], want) {
		case 0:
			return true
		case -1:
			low = end + 1
		default:
			high = start
		}
	}
	return false
}
