"""The report: one HTML file, or a folder of small pages, made from run folders alone."""

from harmax_lab.report.html import Report, write_report
from harmax_lab.report.results import judge_again, write_results

__all__ = ["Report", "judge_again", "write_report", "write_results"]
