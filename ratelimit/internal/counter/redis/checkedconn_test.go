package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Replies are taken or refused whatever pieces they arrive in.
func TestCheckedConn(t *testing.T) {
	f := func(text string, replies int, want bool) {
		t.Helper()
		for _, piece := range []int{1, 2, 3, len(text)} {
			c := checkedConn{expected: replies}
			var err error
			for rest := text; rest != "" && err == nil; {
				n := min(piece, len(rest))
				err = c.check([]byte(rest[:n]))
				rest = rest[n:]
			}
			complete := c.expected == 0 && c.kind == 0 && c.body == 0
			if (err == nil && complete) != want {
				t.Errorf("%.60q in pieces of %d: %v, complete %t; want %t", text, piece, err, complete, want)
			}
		}
	}
	f("+OK\r\n:12\r\n:-3\r\n$5\r\na\r\nbc\r\n$-1\r\n$0\r\n\r\n*-1\r\n*0\r\n-ERR no\r\n:9223372036854775807\r\n", 10, true)
	f("*3\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n*0\r\n:2\r\n", 2, true)
	f(strings.Repeat("*1\r\n", maxReplyDepth)+":1\r\n", 1, true)
	f(":1\r\n", 2, false)
	f(":1\r\n:2\r\n", 1, false)
	for _, wrong := range []string{"*999999999999999999\r\n", "%2\r\n", "$999999999999999999\r\n", "*-7\r\n", "$-2\r\n",
		":\r\n", ":-\r\n", ":1a\r\n", ":1\n", ":1\rx", "+a\rb\r\n", "$1\r\nabc", "$?\r\n", "~1\r\n", ">1\r\n", "\r\n",
		"$99999999999999999999\r\n",
		fmt.Sprintf("$%d\r\n", maxReplyString+1), fmt.Sprintf("*%d\r\n", maxReplyValues+1),
		fmt.Sprintf("*2\r\n*%d\r\n", maxReplyValues-1), strings.Repeat("*1\r\n", maxReplyDepth+1),
		"+" + strings.Repeat("a", maxReplyLine) + "\r\n"} {
		f(wrong, 1, false)
		c := checkedConn{expected: 1}
		if err := c.check([]byte(wrong)); err == nil {
			t.Errorf("%.60q is taken", wrong)
		}
	}
	var c checkedConn
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errUnexpected) {
		t.Errorf("a read without a command: %v", err)
	}
}
