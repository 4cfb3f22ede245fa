package environments

import "strings"

// SuggestName returns the known name that got is probably a typo of, or "". It returns the nearest name, the first of
// several, with at most two typos (one in a name of up to three bytes). A typo is an extra, missing or different byte,
// or two swapped bytes. Case is ignored.
func SuggestName(got string, known []string) string {
	nearest, least := "", 3
	got = strings.ToLower(got)
	for _, name := range known {
		allowed := 2
		if min(len(got), len(name)) <= 3 {
			allowed = 1
		}
		// The cost of slips is the product of both lengths: skip names whose lengths differ too much.
		if abs(len(got)-len(name)) > allowed {
			continue
		}
		if d := slips(got, strings.ToLower(name)); d <= allowed && d < least {
			nearest, least = name, d
		}
	}
	return nearest
}

// slips is the optimal string alignment distance of a and b, over bytes.
func slips(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+differ(a[i-1], b[j-1]))
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

func differ(a, b byte) int {
	if a == b {
		return 0
	}
	return 1
}

func abs(n int) int { return max(n, -n) }
