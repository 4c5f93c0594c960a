package redirect

import (
	"errors"
	"fmt"
)

// set is a set of bytes.
type set [4]uint64

func (s *set) add(c byte)      { s[c>>6] |= 1 << (c & 63) }
func (s *set) has(c byte) bool { return s[c>>6]&(1<<(c&63)) != 0 }
func (s set) not() set         { return set{^s[0], ^s[1], ^s[2], ^s[3]} }

func bytesOf(text string) (s set) {
	for i := range len(text) {
		s.add(text[i])
	}
	return s
}

// The characters that wildcards match, by part of a URL (docs/api.md#where-links-and-answers-may-lead).
var (
	hostLabel = bytesOf("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
	hostRun   = bytesOf("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-.")
	digits    = bytesOf("0123456789")
	segment   = bytesOf("./").not() // in a path, * matches neither
	anything  = set{}.not()
)

// step matches one byte of a set, or any number of them.
type step struct {
	set set
	run bool
}

// glob is a compiled pattern of one part.
type glob []step

// match follows all paths through the pattern at once, so that no pattern takes exponential time.
func (g glob) match(text string) bool {
	var buf [2][maxPattern + 1]bool
	now, next := buf[0][:len(g)+1], buf[1][:len(g)+1]
	now[0] = true
	g.skipRuns(now)
	for i := range len(text) {
		clear(next)
		alive := false
		for j := range g {
			if now[j] && g[j].set.has(text[i]) {
				if g[j].run {
					next[j] = true
				} else {
					next[j+1] = true
				}
				alive = true
			}
		}
		if !alive {
			return false
		}
		now, next = next, now
		g.skipRuns(now)
	}
	return now[len(g)]
}

// skipRuns advances past steps that match any number of bytes, which may be none.
func (g glob) skipRuns(at []bool) {
	for j := range g {
		if at[j] && g[j].run {
			at[j+1] = true
		}
	}
}

// stars compiles text in which only * and ** are special.
func stars(text string, one, two set) (g glob) {
	for i := 0; i < len(text); i++ {
		if text[i] != '*' {
			g = append(g, step{set: bytesOf(text[i : i+1])})
			continue
		}
		s := one
		for i+1 < len(text) && text[i+1] == '*' {
			s = two
			i++
		}
		g = append(g, step{set: s, run: true})
	}
	return g
}

// compileText compiles a path with query. Special are * ** [abc] [!abc] [a-c] {x} and the backslash; ? is literal.
func compileText(text string) (g glob, err error) {
	braces := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '*':
			s := segment
			for i+1 < len(text) && text[i+1] == '*' {
				s = anything
				i++
			}
			g = append(g, step{set: s, run: true})
		case '[':
			n, s, err := class(text[i:])
			if err != nil {
				return nil, err
			}
			i += n - 1
			g = append(g, step{set: s})
		case '{': // the list is split at commas, so a brace has only one alternative
			braces++
		case '}':
			if braces--; braces < 0 {
				return nil, errors.New("a } closes nothing")
			}
		case '\\':
			if i++; i == len(text) {
				return nil, errors.New("ends in a backslash")
			}
			g = append(g, step{set: bytesOf(text[i : i+1])})
		default:
			g = append(g, step{set: bytesOf(text[i : i+1])})
		}
	}
	if braces > 0 {
		return nil, errors.New("a { is not closed; alternatives are items of their own")
	}
	return g, nil
}

// class reads [abc] at the beginning of text and returns its length and set. [!a] matches neither . nor /.
func class(text string) (n int, s set, err error) {
	i, inverted := 1, false
	if i < len(text) && (text[i] == '!' || text[i] == '^') {
		inverted = true
		i++
	}
	begin := i
	for ; i < len(text) && (text[i] != ']' || i == begin); i++ {
		if text[i] >= 0x80 {
			return 0, s, errors.New("a [ ] may hold ASCII only")
		}
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		from, to := text[i], text[i]
		if i+2 < len(text) && text[i+1] == '-' && text[i+2] != ']' {
			to = text[i+2]
			i += 2
		}
		if from > to || to >= 0x80 {
			return 0, s, fmt.Errorf("a [ ] holds the range %c-%c, which runs backwards or beyond ASCII", from, to)
		}
		for c := int(from); c <= int(to); c++ {
			s.add(byte(c))
		}
	}
	if i >= len(text) {
		return 0, s, errors.New("a [ is not closed")
	}
	if inverted {
		s = s.not()
		for k := range s {
			s[k] &= segment[k]
		}
	}
	return i + 1, s, nil
}
