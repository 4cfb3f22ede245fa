package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Style is the colour of a text on a terminal; "" for none.
type Style string

// The styles, as parameters of the control sequence SGR.
const (
	Bold   Style = "1"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
)

// Paint returns text in a style if standard output shows colours. NO_COLOR turns them off (https://no-color.org).
func (e Env) Paint(s Style, text string) string {
	if s == "" || text == "" || !e.Terminal || e.Getenv("NO_COLOR") != "" || e.Getenv("TERM") == "dumb" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Table aligns columns. The first row is the heading. On a terminal, a table that is too wide leaves out its spare
// columns, and cuts its widest cells. Elsewhere it prints all text.
type Table struct {
	env    Env
	rows   [][]string
	spare  []string
	styles map[string]func(cell string) Style
}

// columnGap is the space between two columns. narrowest is the least width to which a terminal cuts a column.
const (
	columnGap = 2
	narrowest = 12
)

// NewTable returns a table that writes to standard output.
func NewTable(e Env) *Table { return &Table{env: e, styles: map[string]func(string) Style{}} }

// Spare names the columns that a narrow terminal leaves out, the first one first.
func (t *Table) Spare(headings ...string) { t.spare = headings }

// Paint sets the style of a column's cells.
func (t *Table) Paint(heading string, style func(cell string) Style) { t.styles[heading] = style }

// Row adds a line. It prints control characters visibly, because the cells contain data from machines.
func (t *Table) Row(cells ...string) {
	for i, c := range cells {
		cells[i] = strings.TrimRight(Clean(c), " ")
	}
	t.rows = append(t.rows, cells)
}

// Flush writes the added rows.
func (t *Table) Flush() error {
	if len(t.rows) == 0 {
		return nil
	}
	t.fit()
	widths, headings := t.widths(), t.rows[0]
	var b strings.Builder
	for r, row := range t.rows {
		gap := 0
		for i, cell := range row {
			if cell == "" {
				gap += widths[i] + columnGap
				continue
			}
			b.WriteString(strings.Repeat(" ", gap))
			gap = widths[i] + columnGap - utf8.RuneCountInString(cell)
			if r > 0 && i < len(headings) && t.styles[headings[i]] != nil {
				cell = t.env.Paint(t.styles[headings[i]](cell), cell)
			}
			b.WriteString(cell)
		}
		b.WriteString("\n")
	}
	t.rows = nil
	_, err := io.WriteString(t.env.Stdout, b.String())
	return err
}

func (t *Table) widths() []int {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// fit makes the table as wide as the terminal. It cuts no cell of the first column, which contains names.
func (t *Table) fit() {
	if !t.env.Terminal || t.env.Width <= 0 {
		return
	}
	widths := t.widths()
	excess := func() int {
		all := -columnGap - t.env.Width
		for _, w := range widths {
			all += w + columnGap
		}
		return all
	}
	for _, heading := range t.spare {
		if at := slices.Index(t.rows[0], heading); at >= 0 && excess() > 0 {
			for i, row := range t.rows {
				if at < len(row) {
					t.rows[i] = slices.Delete(row, at, at+1)
				}
			}
			widths = slices.Delete(widths, at, at+1)
		}
	}
	for excess() > 0 && len(widths) > 1 {
		widest := 1
		for i := 2; i < len(widths); i++ {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= narrowest {
			break // a table without readable cells is of no use
		}
		widths[widest]--
	}
	for _, row := range t.rows {
		for i := range row {
			row[i] = cut(row[i], widths[i])
		}
	}
}

// cut shortens a text to a width.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:max(width-1, 0)]) + "…"
}

// More reports on standard error that a limit left out entries, and how to list them. left is -1 if their number is
// unknown.
func More(e Env, left int, one, several string) {
	switch left {
	case 0:
		return
	case -1:
		fmt.Fprintf(e.Stderr, "… and more %s; --limit 0 lists all\n", several)
	case 1:
		fmt.Fprintf(e.Stderr, "… and 1 more %s; --limit 0 lists all\n", one)
	default:
		fmt.Fprintf(e.Stderr, "… and %d more %s; --limit 0 lists all\n", left, several)
	}
}
